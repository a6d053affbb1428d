// SPDX-License-Identifier: Apache-2.0
// Feeds files, or all files of folders, to a target: a corpus is a regression test without
// libFuzzer.
#define _XOPEN_SOURCE 700

#include <dirent.h>
#include <sys/stat.h>

#include "fuzz.h"

static long files;

static void feed_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    // Exactly as long as the input, so that a read behind its end is one behind the memory's.
    const size_t size = (size_t)info.st_size;
    uint8_t *data = malloc(size ? size : 1);
    if (!data || fread(data, 1, size, file) != size) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    // Said before, since a find ends the process.
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    files++;
}

static void feed(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder) {
        feed_file(path);
        return;
    }
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        char inside[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
        feed_file(inside);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        feed(argv[i]);
    printf("%ld inputs\n", files);
    return files ? 0 : 1;
}
