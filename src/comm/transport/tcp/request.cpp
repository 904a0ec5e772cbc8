#include "comm/transport/tcp/request.h"

#include <algorithm>
#include <utility>

#include "comm/backend/describe.h"
#include "tutti/core/error.h"

namespace tutti::comm {

int Request::member(int global_rank) const {
  const auto& global_ranks = health->global_ranks();
  return static_cast<int>(std::ranges::find(global_ranks, global_rank) - global_ranks.begin());
}

void Request::complete(const Outcome& outcome) {
  auto failure = failure_of(outcome);
  if (!failure && on_completed) {
    try {
      on_completed(member(outcome.source));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  owner = nullptr;
  mark_completed(std::move(failure));
}

std::exception_ptr Request::failure_of(const Outcome& outcome) const {
  const int failed = peer == any_source ? outcome.source : rank;
  const bool from_any = failed == any_source;
  const std::string name = from_any ? "every other rank" : "rank " + std::to_string(failed);
  std::vector<int> peers;
  if (!from_any) peers.push_back(member(failed));
  const auto peer_error = [&](const std::string& text) {
    return std::make_exception_ptr(PeerError(description + ": " + name + text, peers));
  };
  switch (outcome.kind) {
    case Outcome::Kind::completed:
      return nullptr;
    case Outcome::Kind::timed_out:
      return std::make_exception_ptr(TimeoutError(
          description + ": " +
              (is_send ? name + " did not accept the message" : "no message from " + (from_any ? "any rank" : name)) +
              " within " + describe_duration(timeout),
          peers));
    case Outcome::Kind::closed:
      if (outcome.failure) return outcome.failure;
      break;
    case Outcome::Kind::closed_by_peer:
      return peer_error(" has left the group");
    case Outcome::Kind::disconnected:
    case Outcome::Kind::network_lost:
    case Outcome::Kind::not_authenticated:
      return peer_error(" disconnected (" + describe_end(outcome) + ")");
    case Outcome::Kind::not_connected: {
      const int caller_in_job = health->global_ranks().at(static_cast<std::size_t>(caller));
      return std::make_exception_ptr(PeerError(description + ": on rank " + std::to_string(caller_in_job) +
                                                   " a connection to " + name + " cannot be made: " + outcome.detail,
                                               {caller}));
    }
    case Outcome::Kind::exited:
      return peer_error(" exited or disconnected");
    case Outcome::Kind::peer_failed:
      return outcome.failure;
    case Outcome::Kind::withdrawn:
      return peer_error(" stopped sending the message at its deadline");
    case Outcome::Kind::mismatch: {
      const auto expected = std::to_string(memory.size());
      const auto found = std::to_string(outcome.bytes);
      return std::make_exception_ptr(
          MismatchError(description + ": " +
                        (is_send ? name + " expects " + found + " bytes, but this rank sends " + expected
                                 : "rank " + std::to_string(outcome.source) + " sent " + found +
                                       " bytes, but this rank expects " + expected) +
                        ". The message is dropped."));
    }
    case Outcome::Kind::not_sent:
      break;
  }
  if (!is_send) return peer_error(" is no longer awaited: the communicator was closed");
  return std::make_exception_ptr(Error(description + ": it was not sent, since an exception ended the communicator."));
}

}  // namespace tutti::comm
