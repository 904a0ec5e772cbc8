#include "coordinator/client_events.h"

#include "coordinator/messages.h"
#include "core/describe.h"

namespace tutti::coordinator {

std::optional<FinalEvent> deliver_event(const ClientEvents& events, const ClientOptions& options, MessageType type,
                                        std::string_view body) {
  const int self = options.member.rank;
  BodyReader reader(body);
  switch (type) {
    case MessageType::failed: {
      auto failed = failed_ranks_from(body);
      const bool names_self = std::erase(failed.ranks, self) > 0;
      if (!failed.ranks.empty() && events.on_failed) events.on_failed(failed);
      if (!names_self || failed.is_warning) return std::nullopt;
      return FinalEvent{.why = "the coordinator has judged that this rank (" + std::to_string(self) +
                               ") has failed: it sent no heartbeat for " +
                               describe_duration(options.heartbeat_timeout)};
    }
    case MessageType::left:
      if (events.on_left) events.on_left(reader.ranks());
      return std::nullopt;
    case MessageType::failure_report: {
      const auto rank = reader.get<std::int32_t>();
      const auto group = reader.text();
      if (rank != self && events.on_report) events.on_report(group, rank, reader.text());
      return std::nullopt;
    }
    case MessageType::deadlock:
      if (events.on_deadlock) events.on_deadlock(deadlock_from(body));
      return std::nullopt;
    case MessageType::job_ended:
      return FinalEvent{.why = reader.text(), .is_usage_error = true};
    default:
      throw DamagedFrame("an unknown type of message");
  }
}

}  // namespace tutti::coordinator
