// SPDX-License-Identifier: Apache-2.0
#include "temporary.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

static char whole[256];

static void clean_up(void)
{
    DIR *folder = opendir(whole);
    for (struct dirent *e; folder && (e = readdir(folder)) != NULL;)
        unlinkat(dirfd(folder), e->d_name, 0);
    if (folder)
        closedir(folder);
    rmdir(whole);
}

const char *temporary_folder(void)
{
    const char *base = getenv("TMPDIR");
    if (!whole[0]) {
        snprintf(whole, sizeof whole, "%s/clattn-fuzz-XXXXXX", base && base[0] ? base : "/tmp");
        FUZZ_CHECK(mkdtemp(whole), "%s cannot be made", whole);
        atexit(clean_up);
    }
    return whole;
}

bool temporary_only(const char *folder, char *path, size_t size)
{
    DIR *d = opendir(folder);
    int count = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') {
            snprintf(path, size, "%s/%s", folder, e->d_name);
            count++;
        }
    if (d)
        closedir(d);
    return count == 1;
}
