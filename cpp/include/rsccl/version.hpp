/// @file
/// Which rsccl this is.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "rsccl needs C++17 or newer: compile with -std=c++17"
#endif
#if !defined(__cpp_exceptions)
#error "rsccl says what went wrong by exceptions: compile without -fno-exceptions"
#endif

#include <string>

/// The first number of the version of these headers.
#define RSCCL_VERSION_MAJOR 0
/// Its second number.
#define RSCCL_VERSION_MINOR 1
/// Its third number.
#define RSCCL_VERSION_PATCH 0
/// All three, with dots.
#define RSCCL_VERSION_STRING "0.1.0"
/// One number that grows with the version: 100 is 0.1.0, 10203 is 1.2.3.
#define RSCCL_VERSION (RSCCL_VERSION_MAJOR * 10000 + RSCCL_VERSION_MINOR * 100 + RSCCL_VERSION_PATCH)

/// What programs and library must know under one identity, also in programs that are compiled with -fvisibility=hidden.
#define RSCCL_PUBLIC __attribute__((visibility("default")))

/// @cond a name that changes when programs have to be compiled anew: with the major version, before 1.0 with the minor one too.
#if RSCCL_VERSION_MAJOR == 0
#define RSCCL_DETAIL_ABI RSCCL_DETAIL_JOIN(library_of_headers_0_, RSCCL_VERSION_MINOR)
#else
#define RSCCL_DETAIL_ABI RSCCL_DETAIL_JOIN(library_of_headers_, RSCCL_VERSION_MAJOR)
#endif
#define RSCCL_DETAIL_JOIN(name, number) RSCCL_DETAIL_JOIN_EXPANDED(name, number)
#define RSCCL_DETAIL_JOIN_EXPANDED(name, number) name##number
/// @endcond

namespace rsccl {

/// The version of the library that runs: "0.1.0". That of the headers is RSCCL_VERSION_STRING.
std::string version();

} // namespace rsccl
