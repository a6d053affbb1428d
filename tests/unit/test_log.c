// SPDX-License-Identifier: Apache-2.0
// util/log and util/notes.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "portable.h"
#include "record_log.h"
#include "util/notes.h"

static struct record record;

static void log_keeps_to_its_level(void **state)
{
    (void)state;
    record_start(&record, CLATTN_LOG_INFO);
    cla_logf(&record.log, CLATTN_LOG_ERROR, "e %d", 1);
    cla_logf(&record.log, CLATTN_LOG_INFO, "i %s", "two");
    cla_logf(&record.log, CLATTN_LOG_DEBUG, "d");
    assert_string_equal(record.text, "e 1\ni two\n");
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 1);
    assert_int_equal(record.count[CLATTN_LOG_INFO], 1);

    record_start(&record, (clattn_log_level)0); // warn
    cla_logf(&record.log, CLATTN_LOG_INFO, "i");
    cla_logf(&record.log, CLATTN_LOG_WARN, "w");
    assert_string_equal(record.text, "w\n");

    cla_logf(NULL, CLATTN_LOG_ERROR, "nobody hears this");
    struct cla_log silent = {0};
    cla_logf(&silent, CLATTN_LOG_ERROR, "nor this");
}

static void log_fail_passes_the_status_on(void **state)
{
    (void)state;
    record_start(&record, CLATTN_LOG_ERROR);
    assert_int_equal(cla_fail(&record.log, CLATTN_ERR_SHAPE, "heads %d", 5), CLATTN_ERR_SHAPE);
    assert_string_equal(record.text, "heads 5\n");
    assert_int_equal(cla_fail(NULL, CLATTN_ERR_FILE, "x"), CLATTN_ERR_FILE);
}

static void log_does_not_cut_long_messages(void **state)
{
    (void)state;
    static const int lengths[] = {511, 512, 513, 20000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        record_start(&record, CLATTN_LOG_ERROR);
        cla_logf(&record.log, CLATTN_LOG_ERROR, "%0*d", lengths[i], 7);
        assert_int_equal(record.used, lengths[i] + 1);
        assert_int_equal(record.text[lengths[i] - 1], '7');
    }
}

static FILE *stderr_file;

// The descriptor that stderr had.
static int stderr_to_file(void)
{
    stderr_file = tmpfile();
    assert_non_null(stderr_file);
    fflush(stderr);
    const int saved = dup(STDERR_FILENO);
    assert_true(dup2(fileno(stderr_file), STDERR_FILENO) >= 0);
    return saved;
}

static void stderr_back(int saved, char *text, size_t size)
{
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    rewind(stderr_file);
    text[fread(text, 1, size - 1, stderr_file)] = '\0';
    fclose(stderr_file);
}

// What a log without callback writes to stderr at all four levels.
static void stderr_of(const char *variable, char *out, size_t size)
{
    if (variable)
        setenv("CLATTN_LOG", variable, 1);
    else
        unsetenv("CLATTN_LOG");
    const int saved = stderr_to_file();
    struct cla_log log;
    cla_log_init(&log, NULL, NULL, CLATTN_LOG_DEBUG);
    for (int level = CLATTN_LOG_ERROR; level <= CLATTN_LOG_DEBUG; level++)
        cla_logf(&log, (clattn_log_level)level, "L%d", level);
    stderr_back(saved, out, size);
    unsetenv("CLATTN_LOG");
}

static void log_without_callback(void **state)
{
    (void)state;
    char text[512];
    stderr_of(NULL, text, sizeof text);
    assert_string_equal(text, "");
    stderr_of("", text, sizeof text);
    assert_string_equal(text, "");
    stderr_of("error", text, sizeof text);
    assert_string_equal(text, "clattn error: L1\n");
    stderr_of("warn", text, sizeof text);
    assert_string_equal(text, "clattn error: L1\nclattn warn: L2\n");
    stderr_of("info", text, sizeof text);
    assert_string_equal(text, "clattn error: L1\nclattn warn: L2\nclattn info: L3\n");
    stderr_of("debug", text, sizeof text);
    assert_string_equal(text,
                        "clattn error: L1\nclattn warn: L2\nclattn info: L3\nclattn debug: L4\n");
    stderr_of("Info", text, sizeof text);
    assert_string_equal(text, "clattn error: L1\nclattn warn: L2\nclattn info: L3\n");
    stderr_of("1", text, sizeof text); // no level: the default
    assert_string_equal(text, "clattn error: L1\nclattn warn: L2\n");
}

// A word that is no level is said to be none.
static void log_checks_the_environment(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        bool wrong;
    } words[] = {{"error", false}, {"debug", false}, {"verbose", true}, {"INFO", false},
                 {"Warn", false},  {"inf", true},    {"infos", true},   {"", false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        setenv("CLATTN_LOG", words[i].word, 1);
        struct cla_log log;
        char text[256];
        const int saved = stderr_to_file();
        cla_log_init(&log, NULL, NULL, CLATTN_LOG_WARN);
        cla_log_check_env(&log);
        stderr_back(saved, text, sizeof text);
        assert_int_equal(text[0] != 0, words[i].wrong);
        if (words[i].wrong) {
            assert_non_null(strstr(text, words[i].word));
            assert_non_null(strstr(text, "neither error, warn, info nor debug"));
        }
        // Who has a callback is not asked.
        record_start(&record, CLATTN_LOG_DEBUG);
        cla_log_check_env(&record.log);
        assert_int_equal(record_total(&record), 0);
        unsetenv("CLATTN_LOG");
    }
}

static void log_callback_before_environment(void **state)
{
    (void)state;
    setenv("CLATTN_LOG", "debug", 1);
    record_start(&record, CLATTN_LOG_ERROR);
    unsetenv("CLATTN_LOG");
    assert_ptr_equal(record.log.fn, record_message);
    assert_ptr_equal(record.log.user, &record);
    cla_logf(&record.log, CLATTN_LOG_WARN, "w");
    assert_int_equal(record_total(&record), 0);
}

static void notes_are_bounded(void **state)
{
    (void)state;
    static struct cla_notes notes;
    notes.count = 0;
    for (int i = 0; i < CLA_NOTES_MAX; i++)
        cla_note(&notes, "note %d", i);
    assert_int_equal(notes.count, CLA_NOTES_MAX);
    assert_string_equal(notes.text[0], "note 0");
    assert_string_equal(notes.text[CLA_NOTES_MAX - 1], "note 31");
    cla_note(&notes, "one more");
    cla_note(&notes, "and one more");
    assert_int_equal(notes.count, CLA_NOTES_MAX);
    assert_string_equal(notes.text[CLA_NOTES_MAX - 2], "note 30");
    assert_non_null(strstr(notes.text[CLA_NOTES_MAX - 1], "left out"));
    cla_note(NULL, "nothing");
}

static void notes_are_cut_visibly(void **state)
{
    (void)state;
    static struct cla_notes notes;
    notes.count = 0;
    cla_note(&notes, "%0*d", CLA_NOTE_CHARS - 1, 7);
    assert_int_equal(strlen(notes.text[0]), CLA_NOTE_CHARS - 1);
    assert_int_equal(notes.text[0][CLA_NOTE_CHARS - 2], '7');
    cla_note(&notes, "%0*d", CLA_NOTE_CHARS, 7);
    assert_int_equal(strlen(notes.text[1]), CLA_NOTE_CHARS - 1);
    assert_string_equal(notes.text[1] + CLA_NOTE_CHARS - 5, "0...");
    assert_int_equal(notes.count, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_keeps_to_its_level),
        cmocka_unit_test(log_fail_passes_the_status_on),
        cmocka_unit_test(log_does_not_cut_long_messages),
        cmocka_unit_test(log_without_callback),
        cmocka_unit_test(log_checks_the_environment),
        cmocka_unit_test(log_callback_before_environment),
        cmocka_unit_test(notes_are_bounded),
        cmocka_unit_test(notes_are_cut_visibly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
