#pragma once
// What the coordinator knows of a job and how it answers: messages in, frames out. No I/O.
//
// Answers go to one rank. Events (failed, left, failure reports, deadlocks) go to all ranks, in one order: a list that
// each rank reads from its beginning, also a rank that joins late or connects again. Requests are answered once: a rank
// that connects again sends those that were not answered again under the same tags, and answers to requests that change
// something are kept until the rank has them.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/deadlock_judge.h"
#include "coordinator/frame.h"
#include "coordinator/gathers.h"
#include "coordinator/key_values.h"
#include "coordinator/membership.h"

namespace tutti::coordinator {

class JobState {
 public:
  /// `send` puts a frame into the connection of a rank, if it has one.
  using Send = std::function<void(int rank, std::string_view frame)>;
  JobState(int world_size, const JobTimeouts& timeouts, Send send);

  /// Unless the verdict is a refusal, the caller connects the rank and then calls welcome().
  Membership::HelloResult hello(const Hello& hello, Time now);
  void welcome(const Hello& hello);
  /// Throws DamagedFrame. Returns false if the rank has left by this.
  bool on_frame(int rank, const FrameHeader& header, std::string_view body, Time now);
  /// The rank has sent or read bytes.
  void heard_from(int rank, Time now) { membership_.heard_from(rank, now); }
  void disconnected(int rank, Disconnect how, Time now);
  void process_exited(int rank);
  void stalled(Time::duration duration, Time now) { membership_.stalled(duration, now); }
  /// Judges absences and deadlocks. All that peers have sent must have been read before.
  void judge(Time now, const std::function<bool(int rank)>& acknowledges);
  /// Sends the events since the last call.
  void send_events();

  /// The ranks contradict each other.
  bool is_contradictory() const { return !contradiction_.empty(); }
  const Membership& membership() const { return membership_; }

 private:
  void on_request(int rank, MessageType type, std::uint64_t tag, BodyReader& body);
  void on_all_gather(const RequestId& request, BodyReader& body);
  void cancel(const RequestId& request);
  void answer_values(const KeyValues::Waiting& waiting);
  /// Answers, and keeps the answer until the rank has it.
  void answer_once(const RequestId& request, std::string frame);
  void fail_request(const RequestId& request, RequestError error, std::vector<int> ranks, std::string text);
  void end_member(int rank);
  void publish_failed(const FailedRanks& failed);

  struct Session {
    bool is_connected = false;
    std::uint64_t events_sent = 0;
    std::map<std::uint64_t, std::string> kept_answers;  // by tag
  };
  Session& session(int rank) { return sessions_.at(static_cast<std::size_t>(rank)); }

  Send send_;
  Membership membership_;
  KeyValues key_values_;
  Gathers gathers_;
  DeadlockJudge deadlock_judge_;
  std::vector<Session> sessions_;    // by rank
  std::vector<std::string> events_;  // frames
  std::vector<int> newly_left_;      // since the last send_events()
  std::string contradiction_;        // no rank can continue
};

}  // namespace tutti::coordinator
