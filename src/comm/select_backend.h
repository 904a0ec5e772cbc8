#pragma once
// Selects the backend for a topology.
#include <chrono>
#include <memory>
#include <string>

#include "comm/backend/backend.h"

namespace tutti::comm {

/// Returns the backend `requested` (see CommunicatorOptions::backend) for the ranks of the point-to-point backend
/// `messages`, and connects it. Every rank must call it, with a new `name`. If "auto" selects `messages`, logs the
/// reason. Throws UsageError if a backend that was requested by name is not available.
std::shared_ptr<Backend> select_backend(std::shared_ptr<Backend> messages, const std::string& requested,
                                        const std::string& name, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
