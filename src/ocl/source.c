// SPDX-License-Identifier: Apache-2.0
#include "ocl/source.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/os.h"

enum { MAX_FILES = 64, MAX_PLACES = 4 };

// Where files may lie. All files of one text come from one place, so that a kernel never meets the
// header of another version.
struct place {
    const char *what;
    const char *dir; // NULL = the embedded copy
};

// A text that grows; `failed` once memory ran out.
struct text {
    char *data;
    size_t size, capacity;
    bool failed;
};

struct expansion {
    const struct place *place;
    const struct cla_log *log;
    struct text out;
    char names[MAX_FILES][64]; // files taken so far
    int num_names;
};

static void append(struct text *t, const char *data, size_t size)
{
    if (t->failed)
        return;
    if (t->capacity - t->size <= size) { // one byte more for the end
        size_t capacity = (t->size + size + 1) * 2;
        char *larger = realloc(t->data, capacity);
        if (!larger) {
            t->failed = true;
            return;
        }
        t->data = larger;
        t->capacity = capacity;
    }
    memcpy(t->data + t->size, data, size);
    t->size += size;
    t->data[t->size] = '\0';
}

static void append_line_mark(struct text *t, int line, const char *name)
{
    char mark[128];
    int length = snprintf(mark, sizeof mark, "#line %d \"%s\"\n", line, name);
    append(t, mark, (size_t)length);
}

// Letters, digits, "_", "-" and single dots inside: nothing that leaves the folder, and nothing
// that needs quoting in a #line.
static bool is_plain(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length >= sizeof((struct expansion *)0)->names[0])
        return false;
    if (name[0] == '.' || strstr(name, ".."))
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
           length;
}

static char *join(const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s/%s", dir, name);
    return path;
}

// The file's text, which the caller frees; NULL with an errno: ENOENT where the place does not have
// it, ENOMEM, or why it cannot be read.
static char *load(const struct place *place, const char *name, size_t *size, int *why)
{
    if (place->dir) {
        char *path = join(place->dir, name);
        errno = 0;
        char *text = path ? cla_os_read_file(path, size) : NULL;
        *why = !path ? ENOMEM : errno == ENOTDIR ? ENOENT : errno;
        free(path);
        return text;
    }
    *why = ENOENT;
    for (size_t i = 0; i < cla_embedded_count; i++) {
        const struct cla_embedded_file *f = &cla_embedded_files[i];
        if (strcmp(f->name, name) != 0)
            continue;
        char *text = malloc(f->size + 1);
        if (text) {
            memcpy(text, f->text, f->size);
            text[f->size] = '\0';
            *size = f->size;
        }
        *why = ENOMEM;
        return text;
    }
    return NULL;
}

// strerror() shares its text between threads.
static const char *why_text(int why)
{
    switch (why) {
    case ENOENT: return "there is none";
    case EACCES: return "no permission";
    case EINVAL: return "it is no plain file";
    case EFBIG: return "it is too large";
    default: return "reading failed";
    }
}

// If the line is #include "...", *name and *length are what stands between the quotes. Conditions
// and block comments are not looked at: such a line counts wherever it stands.
static bool parse_include(const char *line, const char *end, const char **name, size_t *length)
{
    static const char word[] = "include";
    const char *p = line;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    if (p == end || *p++ != '#')
        return false;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    if ((size_t)(end - p) < sizeof word || memcmp(p, word, sizeof word - 1) != 0)
        return false;
    p += sizeof word - 1;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    if (p == end || *p++ != '"')
        return false;
    const char *close = memchr(p, '"', (size_t)(end - p));
    if (!close)
        return false;
    *name = p;
    *length = (size_t)(close - p);
    return true;
}

static bool is_taken(const struct expansion *e, const char *name)
{
    for (int i = 0; i < e->num_names; i++)
        if (strcmp(e->names[i], name) == 0)
            return true;
    return false;
}

static clattn_status add_file(struct expansion *e, const char *name, const char *text, size_t size);

// Replaces the #include in line `line` of `from` by the file, or by nothing where it is there
// already, which also ends circles.
static clattn_status add_include(struct expansion *e, const char *from, int line, const char *name,
                                 size_t length)
{
    char wanted[64] = "";
    if (length < sizeof wanted)
        memcpy(wanted, name, length);
    if (!is_plain(wanted))
        return cla_fail(e->log, CLATTN_ERR_FILE,
                        "%s:%d: #include \"%.*s\": only plain file names are allowed", from, line,
                        (int)(length < 200 ? length : 200), name);
    if (is_taken(e, wanted)) {
        append(&e->out, "\n", 1);
        return CLATTN_OK;
    }

    size_t size = 0;
    int why;
    char *text = load(e->place, wanted, &size, &why);
    if (!text && why == ENOMEM)
        return cla_fail(e->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory to read %s", wanted);
    if (!text)
        return cla_fail(e->log, CLATTN_ERR_FILE,
                        "%s:%d: included file %s cannot be read in the same place, %s%s%s: %s",
                        from, line, wanted, e->place->what, e->place->dir ? " " : "",
                        e->place->dir ? e->place->dir : "", why_text(why));
    clattn_status st = add_file(e, wanted, text, size);
    free(text);
    if (st == CLATTN_OK)
        append_line_mark(&e->out, line + 1, from);
    return st;
}

static clattn_status add_file(struct expansion *e, const char *name, const char *text, size_t size)
{
    if (e->num_names == MAX_FILES)
        return cla_fail(e->log, CLATTN_ERR_FILE, "%s: more than %d files in one kernel text", name,
                        MAX_FILES);
    if (memchr(text, '\0', size))
        return cla_fail(e->log, CLATTN_ERR_FILE, "%s (%s) is not a text file: it has a zero byte",
                        name, e->place->what);
    strcpy(e->names[e->num_names++], name);

    append_line_mark(&e->out, 1, name);
    int number = 1;
    for (const char *line = text, *end = text + size; line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop)
            stop = end;
        const char *include;
        size_t length;
        if (parse_include(line, stop, &include, &length)) {
            clattn_status st = add_include(e, name, number, include, length);
            if (st != CLATTN_OK)
                return st;
        } else {
            append(&e->out, line, (size_t)(stop - line));
            append(&e->out, "\n", 1);
        }
        line = stop < end ? stop + 1 : end;
    }
    return CLATTN_OK;
}

// The installed kernel folder, which the caller frees: CLATTN_KERNEL_SUBDIR leads there from the
// folder of the library. NULL where the build is not made to be installed.
static char *installed_dir(void)
{
#ifdef CLATTN_KERNEL_SUBDIR
    static const char here = 0;
    char path[4096];
    if (!cla_os_path_of(&here, path, sizeof path))
        return NULL;
    size_t folder = 0;
    for (size_t i = 0; path[i]; i++)
        if (path[i] == '/' || path[i] == '\\')
            folder = i;
    path[folder] = '\0';
    return join(path, CLATTN_KERNEL_SUBDIR);
#else
    return NULL;
#endif
}

static int find_places(const char *dir, bool embedded, const char *installed, struct place *places)
{
    int n = 0;
    const char *env = embedded ? NULL : cla_os_env("CLATTN_KERNEL_DIR");
    if (dir && *dir && !embedded)
        places[n++] = (struct place){"the context's folder", dir};
    if (env)
        places[n++] = (struct place){"$CLATTN_KERNEL_DIR", env};
    if (installed)
        places[n++] = (struct place){"the installed folder", installed};
    places[n++] = (struct place){"the embedded copy", NULL};
    return n;
}

static clattn_status expand_from(const struct place *place, const char *name, const char *root,
                                 size_t size, const struct cla_log *log, char **text)
{
    struct expansion e = {.place = place, .log = log};
    clattn_status st = add_file(&e, name, root, size);
    if (st == CLATTN_OK && e.out.failed)
        st = cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for the text of %s", name);
    if (st != CLATTN_OK) {
        free(e.out.data);
        return st;
    }
    cla_logf(log, CLATTN_LOG_DEBUG, "%s read from %s%s%s", name, place->what, place->dir ? " " : "",
             place->dir ? place->dir : "");
    *text = e.out.data;
    return CLATTN_OK;
}

static clattn_status not_found(const struct place *places, int n, const char *name,
                               const struct cla_log *log)
{
    struct text list = {0};
    append(&list, "", 0);
    for (int i = 0; i < n; i++) {
        append(&list, i ? ", " : "", i ? 2 : 0);
        append(&list, places[i].what, strlen(places[i].what));
        if (places[i].dir) {
            append(&list, " ", 1);
            append(&list, places[i].dir, strlen(places[i].dir));
        }
    }
    clattn_status st = CLATTN_ERR_OUT_OF_MEMORY;
    if (list.failed)
        st = cla_fail(log, st, "no memory to look for %s", name);
    else
        st = cla_fail(log, CLATTN_ERR_FILE, "kernel file %s cannot be read; tried %s", name,
                      list.data);
    free(list.data);
    return st;
}

clattn_status cla_source_expand(const char *dir, bool embedded, const char *name,
                                const struct cla_log *log, char **text)
{
    *text = NULL;
    if (!is_plain(name))
        return cla_fail(log, CLATTN_ERR_FILE, "kernel file \"%s\" is not a plain file name", name);

    char *installed = embedded ? NULL : installed_dir();
    struct place places[MAX_PLACES];
    int n = find_places(dir, embedded, installed, places);
    clattn_status st = CLATTN_ERR_FILE;
    char *root = NULL;
    size_t size = 0;
    int why = ENOENT;
    int i = 0;
    while (i < n && !root && why == ENOENT) {
        root = load(&places[i++], name, &size, &why);
        if (!root && why == ENOENT && places[i - 1].dir && places[i - 1].dir != installed) {
            const bool there = cla_os_is_folder(places[i - 1].dir);
            cla_logf(log, there ? CLATTN_LOG_INFO : CLATTN_LOG_WARN,
                     there ? "%s (%s) has no %s" : "%s (%s) is no folder to look for %s in",
                     places[i - 1].what, places[i - 1].dir, name);
        }
    }
    // The first place that has the file is taken: going on where it cannot be read, or one of its
    // includes is missing, would quietly pass over a file that the user has put there.
    if (root)
        st = expand_from(&places[i - 1], name, root, size, log, text);
    else if (why == ENOENT)
        st = not_found(places, n, name, log);
    else if (why == ENOMEM)
        st = cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory to read %s", name);
    else
        st = cla_fail(log, CLATTN_ERR_FILE, "kernel file %s of %s (%s) cannot be read: %s", name,
                      places[i - 1].what, places[i - 1].dir, why_text(why));
    free(root);
    free(installed);
    return st;
}
