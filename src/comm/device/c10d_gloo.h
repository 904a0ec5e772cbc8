#pragma once
// The Gloo backend of c10d, for devices.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "tutti/comm/c10d_backend_factory.h"

namespace tutti::comm {

/// Why this build has no Gloo backend; empty if it has one.
std::string c10d_gloo_unavailable_reason();
/// Makes c10d's Gloo backend. It listens at `address`.
C10dBackendFactory c10d_gloo_factory(c10::intrusive_ptr<c10d::Store> store, const std::string& address,
                                     std::chrono::milliseconds timeout);

}  // namespace tutti::comm
