// SPDX-License-Identifier: Apache-2.0
// Stands before the system's folders when the headers are tested that need no OpenCL.
#error "this header must compile without OpenCL headers"
