#pragma once
// Reads the events that the coordinator pushes and calls the client's callbacks.
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/client.h"
#include "coordinator/frame.h"

namespace tutti::coordinator {

/// Why an event ends the client.
struct FinalEvent {
  std::string why;
  bool is_usage_error = false;
};

/// Throws DamagedFrame.
std::optional<FinalEvent> deliver_event(const ClientEvents& events, const ClientOptions& options, MessageType type,
                                        std::string_view body);

}  // namespace tutti::coordinator
