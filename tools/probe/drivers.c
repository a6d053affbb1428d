// SPDX-License-Identifier: Apache-2.0
// Where OpenCL loaders look for drivers, what is there, and what to install where nothing is.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/output.h"
#include "probe/probe.h"

#if defined(__ANDROID__)
static const char usual_folder[] = "/system/vendor/Khronos/OpenCL/vendors";
#else
static const char usual_folder[] = "/etc/OpenCL/vendors";
#endif

static const char *env(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), size = strlen(end);

    return length >= size && strcmp(text + length - size, end) == 0;
}

// ---- what is there ------------------------------------------------------------------------------

static void add_driver(json_t *drivers, const char *source, const char *library)
{
    json_array_append_new(drivers, json_pack("{s:o, s:o}", "source", tool_json_text(source),
                                             "library", tool_json_text(library)));
}

// A file of one line, the library; an empty library where it cannot be read.
static void add_icd_file(json_t *drivers, const char *path)
{
    char line[1024] = "";
    FILE *file = fopen(path, "r");

    if (file) {
        if (fgets(line, sizeof line, file))
            line[strcspn(line, "\r\n")] = '\0';
        fclose(file);
    }
    add_driver(drivers, path, line);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void add_folder(json_t *drivers, const char *folder)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, by_name);

    for (int i = 0; i < count; i++) {
        char path[2560];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (ends_with(path, ".icd"))
            add_icd_file(drivers, path);
        free(entries[i]);
    }
    free(entries);
}

// $OCL_ICD_FILENAMES: libraries with colons between them.
static void add_list(json_t *drivers, const char *variable)
{
    char *copy = env(variable) ? strdup(env(variable)) : NULL, *rest = NULL;

    for (char *name = copy ? strtok_r(copy, ":", &rest) : NULL; name;
         name = strtok_r(NULL, ":", &rest))
        add_driver(drivers, variable, name);
    free(copy);
}

json_t *probe_drivers(void)
{
    json_t *drivers = json_array();
    const char *from = env("OCL_ICD_VENDORS") ? "OCL_ICD_VENDORS" : "OPENCL_VENDOR_PATH";
    const char *where = env(from);
    char path[2048];
    struct stat info;

    if (!where) {
        from = "default";
        where = usual_folder;
    }
    snprintf(path, sizeof path, "%s", where);
    // ocl-icd takes the name of a file of the usual folder too.
    if (stat(path, &info) != 0 && !strchr(where, '/'))
        snprintf(path, sizeof path, "%s/%s", usual_folder, where);
    bool exists = stat(path, &info) == 0;
    add_list(drivers, "OCL_ICD_FILENAMES");
    if (exists && S_ISDIR(info.st_mode))
        add_folder(drivers, path);
    else if (exists && ends_with(path, ".icd"))
        add_icd_file(drivers, path);
    else if (strcmp(from, "OCL_ICD_VENDORS") == 0 && (exists || strstr(where, ".so")))
        add_driver(drivers, from, where); // ocl-icd takes a library too
    return json_pack("{s:o, s:s, s:b, s:o}", "folder", tool_json_text(exists ? path : where),
                     "from", from, "exists", exists, "drivers", drivers);
}

// ---- whether it loads ---------------------------------------------------------------------------

static void load(const char *library, json_t *result)
{
    Dl_info info;
    // As the usual loaders open it. Drivers do not survive being unloaded.
    void *lib = library[0] ? dlopen(library, RTLD_LAZY | RTLD_LOCAL) : NULL;
    const char *why = lib ? NULL : library[0] ? dlerror() : "the file names no library";
    void *function = lib ? dlsym(lib, "clIcdGetPlatformIDsKHR") : NULL;

    if (lib && !function)
        function = dlsym(lib, "clGetExtensionFunctionAddress");
    if (lib && !function)
        why = "it is no OpenCL driver: it has no function clGetExtensionFunctionAddress";
    if (function && dladdr(function, &info) && info.dli_fname)
        json_object_set_new(result, "path", tool_json_text(info.dli_fname));
    json_object_set_new(result, "loads", json_boolean(!why));
    if (why)
        json_object_set_new(result, "why", tool_json_text(why));
}

void probe_task_drivers(const struct probe_options *opt, int first)
{
    json_t *where = probe_drivers(), *driver;
    size_t i;

    (void)opt;
    json_array_foreach(json_object_get(where, "drivers"), i, driver) {
        const char *library = json_string_value(json_object_get(driver, "library"));
        if ((int)i < first)
            continue;
        json_t *result = json_object();
        probe_stage((int)i, "loading %s", library);
        load(library, result);
        probe_add("loaded", result);
    }
    json_decref(where);
}

// ---- one driver alone ---------------------------------------------------------------------------

// What the list of devices says with only the drivers of a folder.
static json_t *list_with(const struct probe_options *opt, const char *folder)
{
    struct probe_lost lost;
    json_t *found = json_object(), *said;

    probe_child(opt, "list", folder, found, &lost);
    const json_t *count = json_object_get(found, "opencl_devices");
    if (lost.lost)
        said = tool_json_text(lost.text);
    else if (count)
        said = json_sprintf("OpenCL devices: %lld", (long long)json_integer_value(count));
    else
        said = json_incref(json_object_get(found, "error"));
    probe_lost_free(&lost);
    json_decref(found);
    return said;
}

// Looks for devices with only this driver. Every loader takes a folder, so it gets one.
static void try_alone(const struct probe_options *opt, json_t *driver)
{
    char folder[1024], path[1100];

    snprintf(folder, sizeof folder, "%s/clattn-probe-XXXXXX", env("TMPDIR") ? env("TMPDIR")
                                                                            : P_tmpdir);
    probe_remove_at_end(NULL, folder);
    if (!mkdtemp(folder)) {
        probe_remove_at_end(NULL, NULL);
        return;
    }
    snprintf(path, sizeof path, "%s/only.icd", folder);
    probe_remove_at_end(path, folder);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%s\n", json_string_value(json_object_get(driver, "library")));
        fclose(file);
        json_object_set_new(driver, "alone", list_with(opt, folder));
        unlink(path);
    }
    rmdir(folder);
    probe_remove_at_end(NULL, NULL);
}

json_t *probe_drivers_checked(const struct probe_options *opt, bool alone)
{
    json_t *where = probe_drivers(), *drivers = json_object_get(where, "drivers");
    size_t count = json_array_size(drivers), i;
    json_t *driver;

    for (size_t next = 0; next < count;) {
        char task[32];
        struct probe_lost lost;
        json_t *answer = json_object(), *result;
        snprintf(task, sizeof task, "drivers=%zu", next);
        probe_child(opt, task, NULL, answer, &lost);
        json_array_foreach(json_object_get(answer, "loaded"), i, result)
            json_object_update(json_array_get(drivers, next++), result);
        if (lost.lost && next < count) {
            driver = json_array_get(drivers, next++);
            json_object_set_new(driver, "loads", json_false());
            json_object_set_new(driver, "why", tool_json_text(lost.text));
        } else {
            next = count;
        }
        probe_lost_free(&lost);
        json_decref(answer);
    }
    json_array_foreach(drivers, i, driver) {
        if (alone && json_is_true(json_object_get(driver, "loads")))
            try_alone(opt, driver);
    }
    return where;
}

// ---- advice -------------------------------------------------------------------------------------

json_t *probe_advice(void)
{
    static const char *const advice[][2] = {
        {"Debian, Ubuntu",
         "apt install ocl-icd-libopencl1 and a driver: pocl-opencl-icd (CPU), mesa-opencl-icd "
         "(GPU; its rusticl wants RUSTICL_ENABLE), intel-opencl-icd (Intel GPU), nvidia-opencl-icd "
         "(NVIDIA; with the maker's packages it comes with the graphics driver)"},
        {"Fedora",
         "dnf install OpenCL-ICD-Loader (ocl-icd before Fedora 42) and a driver: pocl (CPU), "
         "mesa-libOpenCL (GPU), intel-compute-runtime (Intel GPU), rocm-opencl (AMD), "
         "xorg-x11-drv-nvidia-cuda of RPM Fusion (NVIDIA)"},
        {"Arch",
         "pacman -S ocl-icd and a driver: pocl (CPU), opencl-mesa (GPU), intel-compute-runtime "
         "(Intel GPU), rocm-opencl-runtime (AMD), opencl-nvidia (NVIDIA)"},
        {"Windows",
         "the maker's graphics driver (AMD, Intel, NVIDIA) brings OpenCL.dll and the GPU's driver; "
         "for the CPU, Intel's CPU Runtime for OpenCL Applications"},
        {"Android",
         "OpenCL is part of the maker's firmware (libOpenCL.so); an app must name it in its "
         "manifest: <uses-native-library android:name=\"libOpenCL.so\" "
         "android:required=\"false\"/>; in Termux: pkg install ocl-icd opencl-vendor-driver, or "
         "pocl"},
    };
    json_t *list = json_array();

    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++)
        json_array_append_new(list, json_pack("{s:s, s:s}", "system", advice[i][0], "install",
                                              advice[i][1]));
    return list;
}
