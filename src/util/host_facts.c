// SPDX-License-Identifier: Apache-2.0
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // environ
#endif

#include "util/host_facts.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define HAVE_CPUID 1
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(_WIN32)
#define environ _environ
#else
#include <unistd.h>
#if defined(__APPLE__)
#include <crt_externs.h>
#define environ (*_NSGetEnviron())
#endif
#endif

enum { CPU_BYTES = 8192 };

#if defined(HAVE_CPUID)

static size_t leaf(char *text, size_t used, unsigned number, unsigned sub)
{
    unsigned r[4] = {0};
    if (!__get_cpuid_count(number, sub, &r[0], &r[1], &r[2], &r[3]))
        return used;
    if (number == 1)
        r[1] = 0; // names the core that answered
    if (number == 1 && r[2] & bit_OSXSAVE) { // which registers the system saves
        unsigned low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        r[1] = low;
    }
    return used + (size_t)snprintf(text + used, CPU_BYTES - used, "%x.%x: %08x %08x %08x %08x\n",
                                   number, sub, r[0], r[1], r[2], r[3]);
}

static void describe(char *text)
{
    static const unsigned leaves[][2] = {{0, 0}, {1, 0}, {7, 0}, {7, 1}, {0x80000001u, 0},
                                         {0x80000002u, 0}, {0x80000003u, 0}, {0x80000004u, 0}};
    size_t used = (size_t)snprintf(text, CPU_BYTES, "x86, %zu-bit\n", 8 * sizeof(void *));
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        used = leaf(text, used, leaves[i][0], leaves[i][1]);
}

#elif defined(__linux__)

// Lines of /proc/cpuinfo that differ between cores, or from one moment to the next.
static bool varies(const char *line)
{
    static const char *const names[] = {"processor", "cpu MHz", "clock", "bogomips", "BogoMIPS",
                                        "hart", "core", "physical id", "siblings", "timebase"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(line, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

// The block of the first core, which ends with an empty line.
static void describe(char *text)
{
    size_t used = (size_t)snprintf(text, CPU_BYTES, "%zu-bit, %lx %lx\n", 8 * sizeof(void *),
                                   getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[2048];
    while (file && fgets(line, sizeof line, file) && line[0] != '\n')
        if (!varies(line) && used < CPU_BYTES)
            used += (size_t)snprintf(text + used, CPU_BYTES - used, "%s", line);
    if (file)
        fclose(file);
}

#elif defined(__APPLE__)

static void describe(char *text)
{
    char brand[256] = "";
    uint32_t family = 0;
    size_t size = sizeof brand - 1;
    sysctlbyname("machdep.cpu.brand_string", brand, &size, NULL, 0);
    size = sizeof family;
    sysctlbyname("hw.cpufamily", &family, &size, NULL, 0);
    snprintf(text, CPU_BYTES, "%zu-bit, %s, %08x\n", 8 * sizeof(void *), brand, (unsigned)family);
}

#else

static void describe(char *text)
{
    const char *model = getenv("PROCESSOR_IDENTIFIER"); // Windows
    snprintf(text, CPU_BYTES, "%zu-bit, %s\n", 8 * sizeof(void *), model ? model : "unknown");
}

#endif

char *cla_host_cpu(void)
{
    char *text = calloc(1, CPU_BYTES);
    if (text)
        describe(text);
    return text;
}

static bool wanted(const char *variable, const char *const *prefixes, size_t count,
                   const char *except)
{
    const char *end = strchr(variable, '=');
    const char *found = strstr(variable, except);
    if (!end || (found && found < end))
        return false;
    for (size_t i = 0; i < count; i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char *cla_host_env(const char *const *prefixes, size_t count, const char *except)
{
    size_t all = 0, found = 0, bytes = 1;
    while (environ && environ[all])
        all++;
    const char **list = malloc((all + 1) * sizeof *list);
    if (!list)
        return NULL;
    for (size_t i = 0; i < all && environ[i]; i++)
        if (wanted(environ[i], prefixes, count, except)) {
            list[found++] = environ[i];
            bytes += strlen(environ[i]) + 1;
        }
    qsort(list, found, sizeof *list, by_text);
    char *text = calloc(1, bytes), *to = text;
    for (size_t i = 0; text && i < found; i++) {
        const size_t n = strlen(list[i]);
        memcpy(to, list[i], n);
        to[n] = '\n';
        to += n + 1;
    }
    free(list);
    return text;
}
