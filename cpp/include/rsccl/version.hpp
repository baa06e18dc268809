/// @file
/// Which rsccl this is.
#pragma once

#include <string>

/// The version of these headers.
#define RSCCL_VERSION_MAJOR 0
#define RSCCL_VERSION_MINOR 1
#define RSCCL_VERSION_PATCH 0
#define RSCCL_VERSION_STRING "0.1.0"
/// One number that grows with the version: 100 is 0.1.0, 10203 is 1.2.3.
#define RSCCL_VERSION (RSCCL_VERSION_MAJOR * 10000 + RSCCL_VERSION_MINOR * 100 + RSCCL_VERSION_PATCH)

namespace rsccl {

/// The version of the library that runs: "0.1.0". That of the headers is RSCCL_VERSION_STRING.
std::string version();

} // namespace rsccl
