// SPDX-License-Identifier: Apache-2.0
#include "outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool refuse(char *why, size_t why_size, const char *text)
{
    snprintf(why, why_size, "%s", text);
    return false;
}

// Absolute folder of `path`; the caller frees it.
static char *folder_of(const char *path)
{
    char *copy = strdup(path);
    char *folder = copy ? realpath(dirname(copy), NULL) : NULL;

    free(copy);
    return folder;
}

static bool check_folder(const char *path, char **folder, char *why, size_t why_size)
{
    struct stat info;

    *folder = folder_of(path);
    if (!*folder || stat(*folder, &info) != 0) {
        snprintf(why, why_size, "the folder cannot be used: %s", strerror(errno));
        return false;
    }
    if (!S_ISDIR(info.st_mode))
        return refuse(why, why_size, "the folder is no directory");
    if (access(*folder, W_OK | X_OK) != 0) {
        snprintf(why, why_size, "the folder is not writable: %s", strerror(errno));
        return false;
    }
    return true;
}

static char *join(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);

    if (path)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}

// Where the report goes, a file or pipe would hold both.
static bool is_standard_output(const struct stat *info)
{
    struct stat standard;

    return (S_ISREG(info->st_mode) || S_ISFIFO(info->st_mode)) &&
           fstat(STDOUT_FILENO, &standard) == 0 && standard.st_dev == info->st_dev &&
           standard.st_ino == info->st_ino;
}

// A file that is there already: it must be writable and no directory.
static bool check_existing(struct tool_outfile *out, const char *path, const struct stat *info,
                           char *why, size_t why_size)
{
    char *folder = NULL;

    if (S_ISDIR(info->st_mode))
        return refuse(why, why_size, "it is a directory");
    if (is_standard_output(info))
        return refuse(why, why_size, "it is standard output, where the report goes");
    if (access(path, W_OK) != 0) {
        snprintf(why, why_size, "it is not writable: %s", strerror(errno));
        return false;
    }
    out->direct = !S_ISREG(info->st_mode);
    out->mode = info->st_mode & 0777;
    // A pipe without a name, as of >(gzip), has no path but this one.
    out->path = out->direct ? strdup(path) : realpath(path, NULL);
    if (!out->path)
        return refuse(why, why_size, strerror(errno));
    bool ok = out->direct || check_folder(out->path, &folder, why, why_size);
    free(folder);
    return ok;
}

static bool check_new(struct tool_outfile *out, const char *path, char *why, size_t why_size)
{
    char *folder = NULL;
    struct stat link;

    if (path[0] && path[strlen(path) - 1] == '/')
        return refuse(why, why_size, "it names a folder");
    if (lstat(path, &link) == 0)
        return refuse(why, why_size, "it is a symbolic link to nothing");
    if (!check_folder(path, &folder, why, why_size)) {
        free(folder);
        return false;
    }
    mode_t mask = umask(0);
    umask(mask);
    out->mode = 0666 & ~mask;
    char *copy = strdup(path);
    out->path = copy ? join(folder, basename(copy)) : NULL;
    free(copy);
    free(folder);
    return out->path ? true : refuse(why, why_size, "out of memory");
}

bool tool_outfile_check(struct tool_outfile *out, const char *path, char *why, size_t why_size)
{
    struct stat info;

    memset(out, 0, sizeof *out);
    bool ok = false;
    if (stat(path, &info) == 0)
        ok = check_existing(out, path, &info, why, why_size);
    else if (errno == ENOENT)
        ok = check_new(out, path, why, why_size);
    else
        refuse(why, why_size, strerror(errno));
    if (!ok)
        tool_outfile_discard(out);
    return ok;
}

// ---- temporary files ----------------------------------------------------------------------------

static const int ends[] = {SIGHUP, SIGINT, SIGTERM};
enum { ENDS = sizeof ends / sizeof *ends };
static struct sigaction before[ENDS];
static volatile sig_atomic_t came; // the signal that waits
static int temps;                  // files that there are

// Any thread may get the signal, so it is not enough to block it on this one.
static void hold_back(int number)
{
    if (came) { // someone does not want to wait
        signal(number, SIG_DFL);
        raise(number);
    }
    came = number;
}

static void hold_signals(void)
{
    struct sigaction action = {.sa_handler = hold_back, .sa_flags = SA_RESTART};

    came = 0;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < ENDS; i++) {
        if (sigaction(ends[i], NULL, &before[i]) == 0 && before[i].sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
    }
}

static void release_signals(void)
{
    for (int i = 0; i < ENDS; i++)
        sigaction(ends[i], &before[i], NULL);
    if (came)
        raise(came);
}

static int make_temp(struct tool_outfile *out)
{
    char *folder = folder_of(out->path);
    char *temp = folder ? join(folder, ".clattn-XXXXXX") : NULL;

    free(folder);
    if (!temp)
        return -1;
    if (temps++ == 0)
        hold_signals();
    out->temp = temp;
    int fd = mkstemp(temp);
    if (fd < 0)
        temp[0] = '\0'; // it may name the last file that was in the way
    return fd;
}

// Renames the temporary file, or removes it where `to` is NULL.
static bool end_temp(struct tool_outfile *out, const char *to)
{
    if (to && rename(out->temp, to) != 0)
        return false;
    if (!to && out->temp[0])
        unlink(out->temp);
    free(out->temp);
    out->temp = NULL;
    if (--temps == 0)
        release_signals();
    return true;
}

static int open_target(struct tool_outfile *out)
{
    if (out->direct)
        return open(out->path, O_WRONLY);
    int fd = make_temp(out);
    if (fd < 0) {
        int code = errno;
        if (out->temp)
            end_temp(out, NULL);
        errno = code;
        return -1;
    }
    // A file system without permission bits refuses this, which does no harm.
    if (fchmod(fd, out->mode) != 0)
        errno = 0;
    return fd;
}

int tool_outfile_open(struct tool_outfile *out, char *why, size_t why_size)
{
    int fd = open_target(out);

    if (fd < 0)
        snprintf(why, why_size, "it cannot be written: %s", strerror(errno));
    return fd;
}

bool tool_outfile_write_npy(struct tool_outfile *out, enum tool_npy_dtype dtype, const void *data,
                            int ndim, const int64_t *shape, char *why, size_t why_size)
{
    int fd = open_target(out);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "wb");
    bool ok = file && tool_npy_write(file, dtype, data, ndim, shape);
    int code = errno;
    if (file) {
        if (fclose(file) != 0 && ok) {
            code = errno;
            ok = false;
        }
    } else if (fd >= 0) {
        close(fd);
    }
    if (!ok) {
        snprintf(why, why_size, "it cannot be written: %s", strerror(code));
        if (out->temp)
            end_temp(out, NULL);
    }
    return ok;
}

bool tool_outfile_commit(struct tool_outfile *out, char *why, size_t why_size)
{
    if (!out->temp)
        return true;
    if (end_temp(out, out->path))
        return true;
    snprintf(why, why_size, "it cannot be put in its place: %s", strerror(errno));
    return false;
}

void tool_outfile_discard(struct tool_outfile *out)
{
    if (out->temp)
        end_temp(out, NULL);
    free(out->path);
    memset(out, 0, sizeof *out);
}
