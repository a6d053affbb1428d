// SPDX-License-Identifier: Apache-2.0
// Says of a function which argument is a format and which the first of its arguments, so that the
// compiler compares them. MinGW's own meaning of `printf` is that of Microsoft's library, without
// %z and %ll; meson.build asks it for those of C.
#ifndef CLA_UTIL_FORMAT_H
#define CLA_UTIL_FORMAT_H

#if defined(__MINGW32__) && defined(__GNUC__) && !defined(__clang__)
#define CLA_PRINTF(format_at, first_at) __attribute__((format(gnu_printf, format_at, first_at)))
#elif defined(__GNUC__)
#define CLA_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))
#else
#define CLA_PRINTF(format_at, first_at)
#endif

#endif // CLA_UTIL_FORMAT_H
