#pragma once
// From messages to the engine that suits where the ranks live.
#include <chrono>
#include <memory>
#include <string>

#include "comm/engine/engine.h"

namespace tutti::comm {

/// `wanted` as in CommunicatorOptions::engine. Every rank of `messages` must call it, with a new `name`. Says why in
/// the log where "auto" finds nothing better than messages; throws UsageError where what was asked for cannot be had.
std::shared_ptr<Engine> choose_engine(std::shared_ptr<Engine> messages, const std::string& wanted,
                                      const std::string& name, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
