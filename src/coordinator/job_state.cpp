#include "coordinator/job_state.h"

#include <algorithm>
#include <utility>

#include "core/describe.h"

namespace tutti::coordinator {
namespace {

void expect_key(const std::string& key) {
  if (key.size() > max_key_bytes) throw DamagedFrame("a key is too long");
}

std::string key_of(BodyReader& body) {
  auto key = body.text();
  expect_key(key);
  return key;
}

std::vector<std::string> keys_of(BodyReader& body) {
  auto keys = body.texts();
  for (const auto& key : keys) expect_key(key);
  return keys;
}

}  // namespace

JobState::JobState(int world_size, const JobTimeouts& timeouts, Send send)
    : send_(std::move(send)),
      membership_(world_size, timeouts.heartbeat),
      deadlock_judge_(world_size, timeouts.deadlock),
      sessions_(static_cast<std::size_t>(world_size)) {}

Membership::HelloResult JobState::hello(const Hello& hello, Time now) {
  if (!contradiction_.empty()) return {Membership::Verdict::contradicted, contradiction_};
  if (membership_.replaces_absent(hello.member)) process_exited(hello.member.rank);
  auto result = membership_.hello(hello, now);
  if (result.verdict == Membership::Verdict::contradicted) {
    contradiction_ = result.why;
    events_.push_back(BodyWriter().text(contradiction_).frame(MessageType::job_ended));
  }
  return result;
}

void JobState::welcome(const Hello& hello) {
  const int rank = hello.member.rank;
  auto& known = session(rank);
  key_values_.forget_rank(rank);  // the rank sends requests again that were not answered
  gathers_.withdraw(rank);
  known.is_connected = true;
  known.events_sent = std::min<std::uint64_t>(hello.events_seen, events_.size());
  send_(rank, BodyWriter().put(static_cast<std::uint32_t>(membership_.interval().count())).frame(MessageType::welcome));
}

bool JobState::on_frame(int rank, const FrameHeader& header, std::string_view body, Time now) {
  if (!membership_.is_active(rank)) return true;  // the rank learns from the events that it has failed
  BodyReader reader(body);
  switch (header.message()) {
    case MessageType::heartbeat: {
      auto& answers = session(rank).kept_answers;
      answers.erase(answers.begin(), answers.lower_bound(reader.get<std::uint64_t>()));
      return true;
    }
    case MessageType::leave:
      if (membership_.leave(rank)) {
        newly_left_.push_back(rank);
        end_member(rank);
      }
      return false;
    case MessageType::cancel:
      cancel({.rank = rank, .tag = header.tag});
      return true;
    case MessageType::blocked: {
      const bool agrees = reader.get<std::uint8_t>() != 0;
      const Milliseconds blocked_for(reader.get<std::uint32_t>());
      if (!deadlock_judge_.blocked(rank, reader.text(), agrees, now - blocked_for)) {
        throw DamagedFrame("no wait state");
      }
      return true;
    }
    case MessageType::unblocked:
      deadlock_judge_.unblocked(rank);
      return true;
    default:
      on_request(rank, header.message(), header.tag, reader);
      for (const auto& waiting : key_values_.take_ready()) answer_values(waiting);
      return true;
  }
}

void JobState::on_request(int rank, MessageType type, std::uint64_t tag, BodyReader& body) {
  const RequestId request{.rank = rank, .tag = tag};
  const auto& kept = session(rank).kept_answers;
  if (const auto found = kept.find(tag); found != kept.end()) return send_(rank, found->second);
  const auto reply = [&](const BodyWriter& answer) { return answer.frame(MessageType::reply, tag); };
  switch (type) {
    case MessageType::set: {
      const auto key = key_of(body);
      key_values_.set(key, body.text());
      return answer_once(request, reply({}));
    }
    case MessageType::add: {
      const auto key = key_of(body);
      const auto sum = key_values_.add(key, body.get<std::int64_t>());
      if (!sum) return fail_request(request, RequestError::usage, {}, "the value of '" + key + "' is no number");
      return answer_once(request, reply(BodyWriter().put(*sum)));
    }
    case MessageType::compare_set: {
      const auto key = key_of(body);
      const auto expected = body.text();
      return answer_once(request, reply(BodyWriter().text(key_values_.compare_set(key, expected, body.text()))));
    }
    case MessageType::erase:
      return answer_once(request, reply(BodyWriter().put<std::uint8_t>(key_values_.erase(key_of(body)))));
    case MessageType::check:
      return send_(rank, reply(BodyWriter().put<std::uint8_t>(key_values_.contains(keys_of(body)))));
    case MessageType::num_keys:
      return send_(rank, reply(BodyWriter().put(static_cast<std::int64_t>(key_values_.size()))));
    case MessageType::get:
    case MessageType::wait: {
      KeyValues::Waiting waiting{.request = request, .keys = keys_of(body), .wants_values = type == MessageType::get};
      if (key_values_.contains(waiting.keys)) return answer_values(waiting);
      return key_values_.wait(std::move(waiting));
    }
    case MessageType::all_gather:
      return on_all_gather(request, body);
    case MessageType::report: {
      BodyWriter event;
      event.put(static_cast<std::int32_t>(rank)).text(body.text());
      event.text(body.text());
      events_.push_back(event.frame(MessageType::failure_report));
      return answer_once(request, reply({}));
    }
    default:
      throw DamagedFrame("an unknown type of message");
  }
}

void JobState::on_all_gather(const RequestId& request, BodyReader& body) {
  const auto topic = key_of(body);
  const auto members = body.ranks();
  auto value = body.text();
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < static_cast<int>(sessions_.size()); };
  if (!std::ranges::all_of(members, is_rank) || std::ranges::find(members, request.rank) == members.end()) {
    throw DamagedFrame("the members of a gather");
  }
  std::vector<int> ended;
  std::ranges::copy_if(members, std::back_inserter(ended), [&](int rank) { return membership_.has_ended(rank); });
  if (!ended.empty()) {
    return fail_request(request, RequestError::peer_failed, ended, describe_ranks(ended) + " failed or left");
  }
  const auto complete = gathers_.contribute(request, topic, members, std::move(value));
  if (!complete) return;
  const BodyWriter all = std::move(BodyWriter().texts(complete->values));
  for (const auto& each : complete->requests) {
    if (all.size() > max_body_bytes) {
      fail_request(each, RequestError::usage, {}, "the values of a gather are too long");
    } else {
      answer_once(each, all.frame(MessageType::reply, each.tag));
    }
  }
}

void JobState::cancel(const RequestId& request) {
  if (const auto missing = gathers_.cancel(request)) {
    return fail_request(request, RequestError::timed_out, *missing, describe_ranks(*missing));
  }
  const auto key = key_values_.forget(request);
  if (!key) return;  // it is answered already
  fail_request(request, RequestError::timed_out, {}, "key '" + *key + "'");
}

void JobState::answer_values(const KeyValues::Waiting& waiting) {
  const auto& request = waiting.request;
  BodyWriter answer;
  if (waiting.wants_values) {
    answer.put(static_cast<std::uint32_t>(waiting.keys.size()));
    for (const auto& key : waiting.keys) {
      answer.text(key_values_.value(key));
      if (answer.size() > max_body_bytes) {
        return fail_request(request, RequestError::usage, {}, "the values of a request are too long");
      }
    }
  }
  send_(request.rank, answer.frame(MessageType::reply, request.tag));
}

void JobState::answer_once(const RequestId& request, std::string frame) {
  const auto& kept = session(request.rank).kept_answers[request.tag] = std::move(frame);
  send_(request.rank, kept);
}

void JobState::fail_request(const RequestId& request, RequestError error, std::vector<int> ranks, std::string text) {
  answer_once(request,
              ErrorReply{.error = error, .ranks = std::move(ranks), .text = std::move(text)}.frame(request.tag));
}

void JobState::disconnected(int rank, Disconnect how, Time now) {
  session(rank).is_connected = false;
  if (membership_.disconnected(rank, how, now)) publish_failed({.ranks = {rank}, .cause = Cause::exited});
}

void JobState::process_exited(int rank) {
  if (membership_.process_exited(rank)) publish_failed({.ranks = {rank}, .cause = Cause::exited});
}

void JobState::judge(Time now, const std::function<bool(int)>& acknowledges) {
  for (const auto& failed : membership_.judge(now, acknowledges)) publish_failed(failed);
  for (const int rank : membership_.to_probe(now)) send_(rank, BodyWriter().frame(MessageType::probe));
  if (const auto deadlock = deadlock_judge_.judge(now)) events_.push_back(frame_of(*deadlock));
}

void JobState::publish_failed(const FailedRanks& failed) {
  events_.push_back(frame_of(failed));
  if (failed.is_warning) return;
  for (const int rank : failed.ranks) end_member(rank);
}

// The rank answers no request any more: others must not wait for it.
void JobState::end_member(int rank) {
  deadlock_judge_.unblocked(rank);
  key_values_.forget_rank(rank);
  session(rank).kept_answers.clear();
  for (const auto& request : gathers_.end_with(rank)) {
    fail_request(request, RequestError::peer_failed, {rank}, describe_ranks({rank}) + " failed or left");
  }
}

void JobState::send_events() {
  if (!newly_left_.empty()) {
    std::ranges::sort(newly_left_);
    events_.push_back(BodyWriter().ranks(std::exchange(newly_left_, {})).frame(MessageType::left));
  }
  for (std::size_t rank = 0; rank < sessions_.size(); ++rank) {
    auto& known = sessions_[rank];
    while (known.is_connected && known.events_sent < events_.size()) {
      send_(static_cast<int>(rank), events_[known.events_sent++]);
    }
  }
}

}  // namespace tutti::coordinator
