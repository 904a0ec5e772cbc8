// The events that the coordinator pushes.
#include "coordinator/client.h"
#include "coordinator/messages.h"
#include "core/describe.h"

namespace tutti::coordinator {

void Client::on_event(MessageType type, std::string_view body) {
  const int self = options_.member.rank;
  BodyReader reader(body);
  ++events_seen_;
  switch (type) {
    case MessageType::failed: {
      auto failed = failed_ranks_from(body);
      const bool names_self = std::erase(failed.ranks, self) > 0;
      if (!failed.ranks.empty() && events_.on_failed) events_.on_failed(failed);
      if (!names_self || failed.is_warning) return;
      return end(std::nullopt, "the coordinator has judged that this rank (" + std::to_string(self) +
                                   ") has failed: it sent no heartbeat for " +
                                   describe_duration(options_.timeouts.heartbeat));
    }
    case MessageType::left:
      if (events_.on_left) events_.on_left(reader.ranks());
      return;
    case MessageType::failure_report: {
      const auto rank = reader.get<std::int32_t>();
      const auto group = reader.text();
      if (rank != self && events_.on_report) events_.on_report(group, rank, reader.text());
      return;
    }
    case MessageType::deadlock:
      if (events_.on_deadlock) events_.on_deadlock(deadlock_from(body));
      return;
    case MessageType::job_ended:
      return end(std::nullopt, reader.text(), true);
    default:
      throw DamagedFrame("an unknown type of message");
  }
}

}  // namespace tutti::coordinator
