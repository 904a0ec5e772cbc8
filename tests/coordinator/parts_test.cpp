// The parts without I/O: frames, key-values, gathers, the deadlock judge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <random>
#include <string>
#include <vector>

#include "coordinator/client_requests.h"
#include "coordinator/deadlock_judge.h"
#include "coordinator/frame.h"
#include "coordinator/gathers.h"
#include "coordinator/job_state.h"
#include "coordinator/key_values.h"
#include "coordinator/messages.h"
#include "flight/wait_state_text.h"
#include "tutti/core/error.h"

namespace tutti::coordinator::parts_test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(Frames, FieldsComeBack) {
  const auto frame =
      BodyWriter().put(std::int64_t{-3}).text("a").ranks({1, 2}).texts({"", "b"}).frame(MessageType::set, 77);
  FrameBuffer buffer;
  int frames = 0;
  for (const char byte : frame + frame) {  // byte by byte
    buffer.append({&byte, 1});
    buffer.take_frames([&](const FrameHeader& header, std::string_view body) {
      ++frames;
      EXPECT_EQ(header.message(), MessageType::set);
      EXPECT_EQ(header.tag, 77U);
      BodyReader reader(body);
      EXPECT_EQ(reader.get<std::int64_t>(), -3);
      EXPECT_EQ(reader.text(), "a");
      EXPECT_THAT(reader.ranks(), ElementsAre(1, 2));
      EXPECT_THAT(reader.texts(), ElementsAre("", "b"));
      reader.expect_end();
    });
  }
  EXPECT_EQ(frames, 2);
}

TEST(Frames, LengthsAndCountsAreChecked) {
  const std::string huge("\xff\xff\xff\xff", 4);
  EXPECT_THROW(BodyReader(huge).text(), DamagedFrame);
  EXPECT_THROW(BodyReader(huge).ranks(), DamagedFrame);
  EXPECT_THROW(BodyReader(huge).texts(), DamagedFrame);
  EXPECT_THROW(BodyReader("abc").get<std::uint32_t>(), DamagedFrame);
  EXPECT_THROW(BodyReader("abc").expect_end(), DamagedFrame);
  FrameBuffer buffer;
  buffer.append(BodyWriter().text(std::string(max_hello_bytes, 'x')).frame(MessageType::hello).substr(0, 16));
  EXPECT_THROW(buffer.take_frames([](const FrameHeader&, std::string_view) {}), DamagedFrame);
}

// Messages of any type with random or truncated bodies: refused or handled, and the other rank is served.
TEST(Frames, RandomBodiesDoNotHarmTheJob) {
  std::mt19937 random(1);  // NOLINT: repeatable
  const Time now = Time() + std::chrono::hours(1);
  int damaged = 0;
  std::string last;
  JobState job(2, {.heartbeat = milliseconds(1000)}, [&](int rank, std::string_view frame) {
    if (rank == 0) last = frame;
  });
  for (int rank = 0; rank < 2; ++rank) {
    const Hello hello{.member = {.rank = rank, .world_size = 2}, .key = {1, 2}};
    ASSERT_EQ(job.hello(hello, now).verdict, Membership::Verdict::accepted);
    job.welcome(hello);
  }
  for (int trial = 0; trial < 100'000; ++trial) {
    std::string body(random() % 40, '\0');
    for (char& byte : body) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 3);
    FrameHeader header{.type = static_cast<std::uint16_t>(random() % 24), .tag = random() % 8};
    if (header.message() == MessageType::leave) continue;
    try {
      job.on_frame(1, header, body, now);
    } catch (const DamagedFrame&) {
      ++damaged;
    }
    job.send_events();
  }
  EXPECT_GT(damaged, 1000);
  job.on_frame(0, {.type = static_cast<std::uint16_t>(MessageType::num_keys), .tag = 99}, "", now);
  FrameHeader header;
  std::memcpy(&header, last.data(), sizeof(header));
  EXPECT_EQ(header.message(), MessageType::reply);
  EXPECT_EQ(header.tag, 99U);
}

TEST(JobState, ALaterAttemptOfAnAbsentRankTellsTheOthersThatItsProcessHasEnded) {
  std::vector<FailedRanks> told;
  JobState job(2, {.heartbeat = milliseconds(1000)}, [&](int rank, std::string_view frame) {
    FrameHeader header;
    std::memcpy(&header, frame.data(), sizeof(header));
    if (rank == 0 && header.message() == MessageType::failed) told.push_back(failed_ranks_from(frame.substr(16)));
  });
  const Time now = Time() + std::chrono::hours(1);
  const Hello first{.member = {.rank = 0, .world_size = 2}, .key = {1, 1}};
  ASSERT_EQ(job.hello(first, now).verdict, Membership::Verdict::accepted);
  job.welcome(first);
  const Hello restarted = Hello::from_body(
      Hello{.member = {.rank = 1, .world_size = 2, .restart = 1}, .key = {1, 2}}.frame().substr(sizeof(FrameHeader)));
  for (int trial = 0; trial < 2; ++trial) {
    EXPECT_EQ(job.hello(restarted, now).verdict, Membership::Verdict::not_yet);
    job.send_events();
  }
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0].ranks, ElementsAre(1));
  EXPECT_EQ(told[0].cause, Cause::exited);
}

TEST(ClientRequests, ARequestThatWaitsForKeysKeepsNoAnswersToOthers) {
  std::promise<void> has_begun;
  ClientRequests requests([&, calls = 0]() mutable {
    if (calls++ == 0) has_begun.set_value();
  });
  auto waits = std::async(std::launch::async, [&] { requests.call("wait", MessageType::wait, BodyWriter()); });
  has_begun.get_future().wait();
  requests.post(MessageType::report, BodyWriter());
  EXPECT_EQ(requests.lowest_unanswered(), 2U);
  requests.on_answer({.type = static_cast<std::uint16_t>(MessageType::reply), .tag = 2}, "");
  EXPECT_EQ(requests.lowest_unanswered(), 3U);
  requests.end("the test ends", false);
  EXPECT_THROW(waits.get(), PeerError);
}

TEST(KeyValues, WaitingRequestsAreReadyWhenAllKeysExist) {
  KeyValues values;
  const RequestId first{.rank = 1, .tag = 5};
  values.wait({.request = first, .keys = {"a", "b"}, .wants_values = true});
  values.wait({.request = {.rank = 2, .tag = 5}, .keys = {"b"}});
  values.set("c", "");
  values.set("a", "");
  EXPECT_THAT(values.take_ready(), IsEmpty());
  EXPECT_EQ(values.forget({.rank = 2, .tag = 5}), "b");
  EXPECT_TRUE(values.erase("a"));
  values.set("b", "");
  EXPECT_THAT(values.take_ready(), IsEmpty()) << "a was erased meanwhile";
  values.add("a", 1);
  const auto ready = values.take_ready();
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].request, first);
  EXPECT_THAT(ready[0].keys, ElementsAre("a", "b"));
  EXPECT_TRUE(ready[0].wants_values);
  values.set("a", "");
  EXPECT_THAT(values.take_ready(), IsEmpty()) << "answered once";
}

TEST(KeyValues, RequestsOfARankThatHasEndedAreForgotten) {
  KeyValues values;
  values.wait({.request = {.rank = 1, .tag = 5}, .keys = {"a"}});
  values.forget_rank(1);
  values.set("a", "");
  EXPECT_THAT(values.take_ready(), IsEmpty());
}

TEST(KeyValues, SumsDoNotOverflow) {
  KeyValues values;
  values.add("a", std::numeric_limits<std::int64_t>::max());
  EXPECT_FALSE(values.add("a", 1));
  values.set("b", "12 ");
  EXPECT_FALSE(values.add("b", 1));
}

TEST(Gathers, DifferentMembersAreDifferentGathers) {
  Gathers gathers;
  EXPECT_FALSE(gathers.contribute({.rank = 0, .tag = 1}, "t", {0, 1}, "a"));
  EXPECT_FALSE(gathers.contribute({.rank = 1, .tag = 1}, "t", {1, 2}, "b"));
  EXPECT_THAT(*gathers.cancel({.rank = 0, .tag = 1}), ElementsAre(1));
  EXPECT_FALSE(gathers.cancel({.rank = 0, .tag = 1}));
  const auto ended = gathers.end_with(2);
  EXPECT_THAT(ended, ElementsAre(RequestId{.rank = 1, .tag = 1}));
  EXPECT_THAT(gathers.end_with(2), IsEmpty());
}

TEST(Gathers, ARankThatTimesOutEarlierIsNotMissingForTheOthers) {
  Gathers gathers;
  for (const int rank : {0, 2}) gathers.contribute({.rank = rank, .tag = 1}, "t", {0, 1, 2}, "a");
  EXPECT_THAT(*gathers.cancel({.rank = 2, .tag = 1}), ElementsAre(1));
  EXPECT_THAT(*gathers.cancel({.rank = 0, .tag = 1}), ElementsAre(1));
}

TEST(Gathers, ARankThatTimedOutMayContributeAgain) {
  Gathers gathers;
  for (const int rank : {0, 1}) gathers.contribute({.rank = rank, .tag = 1}, "t", {0, 1, 2}, "a");
  gathers.cancel({.rank = 0, .tag = 1});
  EXPECT_FALSE(gathers.contribute({.rank = 2, .tag = 1}, "t", {0, 1, 2}, "c")) << "rank 0 does not wait";
  EXPECT_THAT(*gathers.cancel({.rank = 1, .tag = 1}), ElementsAre(0)) << "all others are there";
  gathers.contribute({.rank = 1, .tag = 2}, "t", {0, 1, 2}, "b");
  const auto complete = gathers.contribute({.rank = 0, .tag = 2}, "t", {0, 1, 2}, "d");
  ASSERT_TRUE(complete);
  EXPECT_THAT(complete->values, ElementsAre("d", "b", "c"));
}

TEST(Gathers, ARankThatTimedOutBetweenTwoRequestsOfAnotherIsNotMissing) {
  Gathers gathers;
  const std::vector<int> members{0, 1, 2};
  gathers.contribute({.rank = 0, .tag = 1}, "topic", members, "a");
  gathers.contribute({.rank = 1, .tag = 1}, "topic", members, "b");
  EXPECT_THAT(*gathers.cancel({.rank = 1, .tag = 1}), ElementsAre(2));
  EXPECT_THAT(*gathers.cancel({.rank = 0, .tag = 1}), ElementsAre(2));
  gathers.contribute({.rank = 1, .tag = 2}, "topic", members, "b");
  EXPECT_THAT(*gathers.cancel({.rank = 1, .tag = 2}), ElementsAre(2));
}

TEST(Gathers, AWithdrawnContributionIsMadeAgainOrMissing) {
  Gathers gathers;
  const std::vector<int> members{0, 1};
  gathers.contribute({.rank = 0, .tag = 1}, "again", members, "a");
  gathers.contribute({.rank = 0, .tag = 2}, "not again", members, "b");
  gathers.withdraw(0);
  EXPECT_FALSE(gathers.contribute({.rank = 0, .tag = 1}, "again", members, "a"));
  EXPECT_TRUE(gathers.contribute({.rank = 1, .tag = 1}, "again", members, "c"));
  EXPECT_FALSE(gathers.contribute({.rank = 1, .tag = 2}, "not again", members, "d"));
  EXPECT_THAT(*gathers.cancel({.rank = 1, .tag = 2}), ElementsAre(0));
}

TEST(Gathers, AnEarlierRequestCancelsNothing) {
  Gathers gathers;
  for (const std::uint64_t tag : {1U, 2U}) gathers.contribute({.rank = 0, .tag = tag}, "t", {0, 1}, "a");
  EXPECT_FALSE(gathers.cancel({.rank = 0, .tag = 1}));
  EXPECT_TRUE(gathers.contribute({.rank = 1, .tag = 1}, "t", {0, 1}, "b"));
}

// ---- jobs

// A job of two ranks, and what was sent to rank 0.
struct Job {
  Job() {
    for (int rank = 0; rank < 2; ++rank) join(rank);
  }
  void join(int rank) {
    const Hello hello{.member = {.rank = rank, .world_size = 2}, .key = {1, 2}};
    state.hello(hello, now);
    state.welcome(hello);
  }
  /// Returns the type of what the job has sent last.
  MessageType pass(int rank, const std::string& frame) {
    FrameHeader header;
    std::memcpy(&header, frame.data(), sizeof(header));
    state.on_frame(rank, header, std::string_view(frame).substr(sizeof(header)), now);
    std::memcpy(&header, sent.back().data(), sizeof(header));
    return header.message();
  }
  std::int64_t add(std::uint64_t tag) {
    EXPECT_EQ(pass(0, BodyWriter().text("a").put(std::int64_t{1}).frame(MessageType::add, tag)), MessageType::reply);
    return BodyReader(std::string_view(sent.back()).substr(sizeof(FrameHeader))).get<std::int64_t>();
  }

  const Time now = Time() + std::chrono::hours(1);
  std::vector<std::string> sent;
  JobState state{2, {.heartbeat = milliseconds(1000)}, [this](int rank, std::string_view frame) {
                   if (rank == 0) sent.emplace_back(frame);
                 }};
};

// A rank that connects again sends its requests again: they are done once.
TEST(JobState, RequestsThatAreSentAgainAreDoneOnce) {
  Job job;
  EXPECT_EQ(job.add(1), 1);
  job.state.disconnected(0, Disconnect::reset, job.now);
  job.join(0);
  EXPECT_EQ(job.add(1), 1);
  EXPECT_EQ(job.add(2), 2);
}

TEST(JobState, LongKeysAreRefused) {
  Job job;
  const std::vector<std::string> keys{"a", std::string(max_key_bytes + 1, 'x')};
  for (const auto type : {MessageType::get, MessageType::wait, MessageType::check}) {
    EXPECT_THROW(job.pass(0, BodyWriter().texts(keys).frame(type, 1)), DamagedFrame);
  }
}

TEST(JobState, AnswersAreForgottenWhenTheRankHasThem) {
  Job job;
  job.add(1);
  job.pass(0, BodyWriter().put(std::uint64_t{2}).frame(MessageType::heartbeat));
  EXPECT_EQ(job.add(1), 2) << "a new request";
}

// ---- deadlocks

std::string blocked_in(const std::string& communicator, std::uint64_t number, std::uint64_t changes = 0) {
  flight::WaitState state;
  state.changes = changes;
  state.pending_calls.push_back({.communicator = communicator, .number = number, .text = "barrier"});
  for (const auto* name : {"a", "b"})
    state.communicators[name] = {.calls = name == communicator ? number + 1 : 0, .members = {0, 1}};
  return flight::to_text(state);
}

TEST(DeadlockJudge, ReportsAtTwoSecondsAndEndsWhenAllAgree) {
  const Time start = Time() + std::chrono::hours(1);
  DeadlockJudge judge(2, std::chrono::seconds(10));
  ASSERT_TRUE(judge.blocked(0, blocked_in("a", 0), false, start));
  EXPECT_FALSE(judge.judge(start + milliseconds(5000)));
  ASSERT_TRUE(judge.blocked(1, blocked_in("b", 0), false, start + milliseconds(1000)));
  EXPECT_FALSE(judge.judge(start + milliseconds(2999)));
  const auto report = judge.judge(start + milliseconds(3000));
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->is_certain);
  EXPECT_THAT(report->text, testing::HasSubstr("No rank can continue"));
  EXPECT_FALSE(judge.judge(start + milliseconds(9000))) << "reported once";
  judge.blocked(0, blocked_in("a", 0), true, start);
  EXPECT_FALSE(judge.judge(start + milliseconds(11000)));
  judge.blocked(1, blocked_in("b", 0), true, start);
  const auto certain = judge.judge(start + milliseconds(11000));
  ASSERT_TRUE(certain);
  EXPECT_TRUE(certain->is_certain);
  EXPECT_FALSE(judge.judge(start + milliseconds(12000)));
}

TEST(DeadlockJudge, AStatementThatIsTakenBackEndsTheDeadlock) {
  const Time start = Time() + std::chrono::hours(1);
  DeadlockJudge judge(2, std::chrono::seconds(10));
  judge.blocked(0, blocked_in("a", 0), true, start);
  judge.unblocked(0);
  judge.blocked(1, blocked_in("b", 0), true, start);
  EXPECT_FALSE(judge.judge(start + std::chrono::hours(1)));
}

TEST(DeadlockJudge, ARankThatContinuedMustAgreeAgain) {
  const Time start = Time() + std::chrono::hours(1);
  DeadlockJudge judge(2, std::chrono::seconds(10));
  judge.blocked(0, blocked_in("a", 0), true, start);
  judge.blocked(0, blocked_in("a", 0, 1), false, start);
  judge.blocked(1, blocked_in("b", 0), true, start);
  const auto found = judge.judge(start + std::chrono::hours(1));
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->is_certain);
}

TEST(DeadlockJudge, TimeoutZeroOnlyReports) {
  const Time start = Time() + std::chrono::hours(1);
  DeadlockJudge judge(2, milliseconds(0));
  judge.blocked(0, blocked_in("a", 0), true, start);
  judge.blocked(1, blocked_in("b", 0), true, start);
  EXPECT_FALSE(judge.judge(start + milliseconds(2000))->is_certain);
  EXPECT_FALSE(judge.judge(start + std::chrono::hours(1)));
}

TEST(DeadlockJudge, RanksInTheSameCallAreNoDeadlock) {
  const Time start = Time() + std::chrono::hours(1);
  DeadlockJudge judge(2, milliseconds(0));
  judge.blocked(0, blocked_in("a", 0), true, start);
  judge.blocked(1, blocked_in("a", 0), true, start);
  EXPECT_FALSE(judge.judge(start + std::chrono::hours(1)));
}

}  // namespace
}  // namespace tutti::coordinator::parts_test
