#pragma once
// From messages to the backend that suits where the ranks live.
#include <chrono>
#include <memory>
#include <string>

#include "comm/backend/backend.h"

namespace tutti::comm {

/// `requested` as in CommunicatorOptions::backend. Every rank of `messages` must call it, with a new `name`. Says why
/// in the log where "auto" finds nothing better than messages; throws UsageError where what was asked for cannot be
/// had.
std::shared_ptr<Backend> select_backend(std::shared_ptr<Backend> messages, const std::string& requested,
                                        const std::string& name, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
