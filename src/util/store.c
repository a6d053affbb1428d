// SPDX-License-Identifier: Apache-2.0
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // openat() and its kin
#endif

#include "util/store.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/format.h"
#include "util/os.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

// What cannot stand in a name, and an hour in the unit of a file's time.
#if defined(_WIN32)
#define NOT_IN_NAMES "/\\:"
#define HOUR 36000000000u
#else
#define NOT_IN_NAMES "/"
#define HOUR 3600000000000u
#endif

CLA_PRINTF(3, 4)
static bool no(char *why, size_t why_size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, why_size, format, args);
    va_end(args);
    return false;
}

// A name of its own for each write: of this process, this moment and this call. It ends like the
// file's own name, so that what a crash leaves behind is trimmed with the rest.
static void temporary_name(const char *name, unsigned long process, char *out, size_t size)
{
    static atomic_uint calls;
    const size_t length = strlen(name), most = 200;
    snprintf(out, size, "%lx-%llx-%x.tmp.%s", process, (unsigned long long)cla_os_now_ns(),
             atomic_fetch_add(&calls, 1), name + (length > most ? length - most : 0));
}

static bool is_temporary(const char *name)
{
    static const char *const ends[] = {"-", "-", ".tmp."};
    for (int i = 0; i < 3; i++) {
        const size_t digits = strspn(name, "0123456789abcdef");
        if (!digits || strncmp(name + digits, ends[i], strlen(ends[i])) != 0)
            return false;
        name += digits + strlen(ends[i]);
    }
    return true;
}

// Nothing that leaves the folder.
static bool is_name(const char *name, char *why, size_t why_size)
{
    if (name[0] && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
        strcspn(name, NOT_IN_NAMES) == strlen(name))
        return true;
    return no(why, why_size, "\"%.100s\" is no name of a file", name);
}

// ---- trimming ----------------------------------------------------------------------------------

struct file {
    char name[256];
    uint64_t bytes, time; // of the last change; only compared
};

struct files {
    struct file *list;
    size_t count, capacity;
};

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name), s = strlen(suffix);
    return n >= s && strcmp(name + n - s, suffix) == 0;
}

static void add_file(struct files *f, const char *name, uint64_t bytes, uint64_t time)
{
    if (f->count == f->capacity) {
        const size_t capacity = f->capacity ? 2 * f->capacity : 64;
        struct file *larger = realloc(f->list, capacity * sizeof *larger);
        if (!larger)
            return; // the next trim sees it
        f->list = larger;
        f->capacity = capacity;
    }
    struct file *file = &f->list[f->count];
    if (strlen(name) >= sizeof file->name)
        return;
    snprintf(file->name, sizeof file->name, "%s", name);
    file->bytes = bytes;
    file->time = time;
    f->count++;
}

static int oldest_first(const void *a, const void *b)
{
    const uint64_t x = ((const struct file *)a)->time, y = ((const struct file *)b)->time;
    return (x > y) - (x < y);
}

static bool list_files(const char *path, const char *suffix, struct files *files);

// A temporary file that no writer can still be at work on. The youngest file's time is the present
// of the system that keeps the files, which may have another clock.
static bool is_left_over(const struct file *f, uint64_t now)
{
    return is_temporary(f->name) && f->time < now && now - f->time > HOUR;
}

void cla_store_trim(const char *path, const char *suffix, uint64_t max_bytes)
{
    struct files files = {0};
    uint64_t total = 0, now = 0;
    if (list_files(path, suffix, &files) && files.count > 0) {
        for (size_t i = 0; i < files.count; i++) {
            total += files.list[i].bytes;
            if (files.list[i].time > now)
                now = files.list[i].time;
        }
        qsort(files.list, files.count, sizeof *files.list, oldest_first);
        // What was left over goes first, whether there is room or not.
        for (int others = 0; others < 2; others++)
            for (size_t i = 0; i < files.count; i++) {
                const struct file *f = &files.list[i];
                const bool left = is_left_over(f, now);
                if (others ? !left && total > max_bytes : left) {
                    cla_store_remove(path, f->name);
                    total -= f->bytes;
                }
            }
    }
    free(files.list);
}

#if defined(_WIN32)

// Folders below %LOCALAPPDATA% inherit rights that keep other users out; they are not checked here.

static bool join(const char *path, const char *name, char *out, size_t size)
{
    const int n = snprintf(out, size, "%s\\%s", path, name);
    return n >= 0 && (size_t)n < size;
}

bool cla_store_default_path(char *path, size_t size)
{
    const char *base = cla_os_env("LOCALAPPDATA");
    const bool whole = base && ((base[0] && base[1] == ':' && strchr("/\\", base[2])) ||
                                strncmp(base, "\\\\", 2) == 0);
    return whole && base[2] && join(base, "clattn", path, size);
}

bool cla_store_open(const char *path, char *why, size_t why_size)
{
    char part[CLA_STORE_PATH];
    const size_t length = strlen(path);
    if (length >= sizeof part)
        return no(why, why_size, "%.100s...: a path of %zu bytes", path, length);
    for (size_t i = 1; i <= length; i++)
        if (path[i] == '\0' || path[i] == '\\' || path[i] == '/') {
            memcpy(part, path, i);
            part[i] = '\0';
            CreateDirectoryA(part, NULL); // drives and what exists fail, which the end shows
        }
    const DWORD kind = GetFileAttributesA(path);
    if (kind == INVALID_FILE_ATTRIBUTES)
        return no(why, why_size, "%s: system error %lu", path, GetLastError());
    if (!(kind & FILE_ATTRIBUTE_DIRECTORY) || (kind & FILE_ATTRIBUTE_REPARSE_POINT))
        return no(why, why_size, "%s is no folder, or a link", path);
    return true;
}

enum cla_store_result cla_store_read(const char *path, const char *name, size_t max_bytes,
                                     void **data, size_t *size, char *why, size_t why_size)
{
    char full[CLA_STORE_PATH];
    *data = NULL;
    *size = 0;
    if (!is_name(name, why, why_size))
        return CLA_STORE_REFUSED;
    if (!cla_store_open(path, why, why_size))
        return CLA_STORE_FAILED;
    WIN32_FILE_ATTRIBUTE_DATA facts;
    if (!join(path, name, full, sizeof full) ||
        !GetFileAttributesExA(full, GetFileExInfoStandard, &facts))
        return CLA_STORE_NONE;
    if (facts.dwFileAttributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT) ||
        facts.nFileSizeHigh || facts.nFileSizeLow > max_bytes) {
        no(why, why_size, "%s is no plain file, or too large", full);
        return CLA_STORE_REFUSED;
    }
    if (!facts.nFileSizeHigh && !facts.nFileSizeLow) {
        no(why, why_size, "%s is empty", full);
        return CLA_STORE_NONE;
    }
    *data = cla_os_read_file(full, size);
    if (*data)
        return CLA_STORE_OK;
    no(why, why_size, "%s cannot be read", full);
    return CLA_STORE_FAILED;
}

bool cla_store_write(const char *path, const char *name, const void *data, size_t size, char *why,
                     size_t why_size)
{
    char temporary[256], from[CLA_STORE_PATH], to[CLA_STORE_PATH];
    if (!is_name(name, why, why_size) || !cla_store_open(path, why, why_size))
        return false;
    temporary_name(name, GetCurrentProcessId(), temporary, sizeof temporary);
    if (!join(path, temporary, from, sizeof from) || !join(path, name, to, sizeof to))
        return no(why, why_size, "%.100s...: too long", path);
    HANDLE file = CreateFileA(from, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL,
                              NULL);
    if (file == INVALID_HANDLE_VALUE)
        return no(why, why_size, "%s: system error %lu", from, GetLastError());
    DWORD written = 0;
    const bool whole = size <= 0xffffffffu && WriteFile(file, data, (DWORD)size, &written, NULL) &&
                       written == size && FlushFileBuffers(file);
    const bool closed = CloseHandle(file);
    if (whole && closed && MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING))
        return true;
    no(why, why_size, "%s: system error %lu", to, GetLastError());
    DeleteFileA(from);
    return false;
}

void cla_store_touch(const char *path, const char *name)
{
    char full[CLA_STORE_PATH], why[8];
    FILETIME now;
    if (!is_name(name, why, sizeof why) || !join(path, name, full, sizeof full))
        return;
    HANDLE file = CreateFileA(full, FILE_WRITE_ATTRIBUTES, FILE_SHARE_READ | FILE_SHARE_WRITE,
                              NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE)
        return;
    GetSystemTimeAsFileTime(&now);
    SetFileTime(file, NULL, NULL, &now);
    CloseHandle(file);
}

void cla_store_remove(const char *path, const char *name)
{
    char full[CLA_STORE_PATH], why[8];
    if (is_name(name, why, sizeof why) && join(path, name, full, sizeof full))
        DeleteFileA(full);
}

static bool list_files(const char *path, const char *suffix, struct files *files)
{
    char pattern[CLA_STORE_PATH];
    WIN32_FIND_DATAA found;
    if (!join(path, "*", pattern, sizeof pattern))
        return false;
    HANDLE search = FindFirstFileA(pattern, &found);
    if (search == INVALID_HANDLE_VALUE)
        return false;
    do {
        const bool plain = !(found.dwFileAttributes &
                             (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT));
        const FILETIME t = found.ftLastWriteTime;
        if (plain && has_suffix(found.cFileName, suffix))
            add_file(files, found.cFileName,
                     (uint64_t)found.nFileSizeHigh << 32 | found.nFileSizeLow,
                     (uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime);
    } while (FindNextFileA(search, &found));
    FindClose(search);
    return true;
}

#else

bool cla_store_default_path(char *path, size_t size)
{
    const char *base = cla_os_env("XDG_CACHE_HOME"), *home = cla_os_env("HOME");
    int n = -1;
    if (base && base[0] == '/')
        n = snprintf(path, size, "%s/clattn", base);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.cache/clattn", home);
    return n >= 0 && (size_t)n < size;
}

static void make_folders(const char *path)
{
    char part[CLA_STORE_PATH];
    const size_t length = strlen(path);
    for (size_t i = 1; i <= length; i++)
        if (path[i] == '\0' || path[i] == '/') {
            memcpy(part, path, i);
            part[i] = '\0';
            mkdir(part, 0700); // what exists fails, and what can't be made shows when it is opened
        }
}

static bool is_private(const struct stat *s)
{
    return s->st_uid == geteuid() && (s->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// The folder's descriptor, -1 on failure.
static int open_folder(const char *path, char *why, size_t why_size)
{
    struct stat s;
    char plain[CLA_STORE_PATH]; // behind a last slash a link would be followed
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    snprintf(plain, sizeof plain, "%.*s", (int)length, path);
    const int folder = open(plain, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 || fstat(folder, &s) != 0) {
        no(why, why_size, "%s: %s", path, strerror(errno));
    } else if (!is_private(&s)) {
        no(why, why_size, "%s belongs to user %lu with mode %03o: only a folder of this user that "
           "others can't write to is used", path, (unsigned long)s.st_uid,
           (unsigned)s.st_mode & 0777);
    } else {
        return folder;
    }
    if (folder >= 0)
        close(folder);
    return -1;
}

bool cla_store_open(const char *path, char *why, size_t why_size)
{
    if (strlen(path) >= CLA_STORE_PATH)
        return no(why, why_size, "%.100s...: a path of %zu bytes", path, strlen(path));
    make_folders(path);
    const int folder = open_folder(path, why, why_size);
    if (folder >= 0)
        close(folder);
    return folder >= 0;
}

static bool read_all(int file, char *data, size_t size)
{
    size_t used = 0;
    while (used < size) {
        const ssize_t n = read(file, data + used, size - used);
        if (n > 0)
            used += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return false;
    }
    return true;
}

static bool write_all(int file, const char *data, size_t size)
{
    size_t used = 0;
    struct rlimit most;
    // The system would send a signal that ends the program.
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
        size > most.rlim_cur) {
        errno = EFBIG;
        return false;
    }
    while (used < size) {
        errno = ENOSPC; // where it writes nothing and says nothing
        const ssize_t n = write(file, data + used, size - used);
        if (n > 0)
            used += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return false;
    }
    return true;
}

// Where the file system has no such thing, the bytes are as safe as it makes them.
static bool on_disk(int file)
{
    int result;
    do
        result = fsync(file);
    while (result != 0 && errno == EINTR);
    return result == 0 || errno == EINVAL || errno == EROFS || errno == ENOTSUP;
}

static enum cla_store_result read_file(int file, const char *name, size_t max_bytes, void **data,
                                       size_t *size, char *why, size_t why_size)
{
    struct stat s;
    if (fstat(file, &s) != 0 || !S_ISREG(s.st_mode) || !is_private(&s)) {
        no(why, why_size, "%s is no plain file that only this user can write", name);
        return CLA_STORE_REFUSED;
    }
    if (s.st_size < 0 || (uint64_t)s.st_size > max_bytes) {
        no(why, why_size, "%s has %lld bytes, more than %zu", name, (long long)s.st_size,
           max_bytes);
        return CLA_STORE_REFUSED;
    }
    if (s.st_size == 0) {
        no(why, why_size, "%s is empty", name);
        return CLA_STORE_NONE;
    }
    *data = malloc((size_t)s.st_size);
    if (*data && read_all(file, *data, (size_t)s.st_size)) {
        *size = (size_t)s.st_size;
        return CLA_STORE_OK;
    }
    no(why, why_size, "%s: %s", name, *data ? "shorter than it was" : "no memory");
    free(*data);
    *data = NULL;
    return CLA_STORE_FAILED;
}

enum cla_store_result cla_store_read(const char *path, const char *name, size_t max_bytes,
                                     void **data, size_t *size, char *why, size_t why_size)
{
    *data = NULL;
    *size = 0;
    if (!is_name(name, why, why_size))
        return CLA_STORE_REFUSED;
    const int folder = open_folder(path, why, why_size);
    if (folder < 0)
        return CLA_STORE_FAILED;
    enum cla_store_result result;
    // A named pipe must not make this wait, nor a terminal become this process's own.
    const int file =
        openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file >= 0) {
        result = read_file(file, name, max_bytes, data, size, why, why_size);
        close(file);
    } else {
        result = errno == ENOENT ? CLA_STORE_NONE
                                 : errno == ELOOP ? CLA_STORE_REFUSED : CLA_STORE_FAILED;
        no(why, why_size, "%s: %s", name, strerror(errno));
    }
    close(folder);
    return result;
}

bool cla_store_write(const char *path, const char *name, const void *data, size_t size, char *why,
                     size_t why_size)
{
    char temporary[256];
    if (!is_name(name, why, why_size))
        return false;
    const int folder = open_folder(path, why, why_size);
    if (folder < 0)
        return false;
    temporary_name(name, (unsigned long)getpid(), temporary, sizeof temporary);
    const int file =
        openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool done = false;
    if (file < 0) {
        no(why, why_size, "%s: %s", path, strerror(errno));
    } else {
        done = write_all(file, data, size) && on_disk(file);
        int error = errno;
        if (close(file) != 0 && done) {
            error = errno;
            done = false;
        }
        if (done && renameat(folder, temporary, folder, name) != 0) {
            error = errno;
            done = false;
        }
        if (!done) {
            no(why, why_size, "%s: %s", path, strerror(error));
            unlinkat(folder, temporary, 0);
        }
    }
    close(folder);
    return done;
}

void cla_store_touch(const char *path, const char *name)
{
    char why[8];
    const int folder = is_name(name, why, sizeof why) ? open_folder(path, why, sizeof why) : -1;
    if (folder < 0)
        return;
    // Either result is right: a folder that can't be written to keeps its times.
    const int result = utimensat(folder, name, NULL, AT_SYMLINK_NOFOLLOW);
    (void)result;
    close(folder);
}

void cla_store_remove(const char *path, const char *name)
{
    char why[8];
    const int folder = is_name(name, why, sizeof why) ? open_folder(path, why, sizeof why) : -1;
    if (folder < 0)
        return;
    unlinkat(folder, name, 0);
    close(folder);
}

#if defined(__APPLE__)
#define CHANGED st_mtimespec
#else
#define CHANGED st_mtim
#endif

static bool list_files(const char *path, const char *suffix, struct files *files)
{
    char why[8];
    const int folder = open_folder(path, why, sizeof why);
    DIR *entries = folder >= 0 ? fdopendir(folder) : NULL;
    if (!entries) {
        if (folder >= 0)
            close(folder);
        return false;
    }
    for (struct dirent *e; (e = readdir(entries)) != NULL;) {
        struct stat s;
        if (has_suffix(e->d_name, suffix) &&
            fstatat(dirfd(entries), e->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(s.st_mode))
            add_file(files, e->d_name, (uint64_t)s.st_size,
                     (uint64_t)s.CHANGED.tv_sec * 1000000000u + (uint64_t)s.CHANGED.tv_nsec);
    }
    closedir(entries);
    return true;
}

#endif
