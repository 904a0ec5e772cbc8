// Ranks: none. One rank's flight record: writing, also from several threads, reading, and damaged files.
#include "flight/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>
#include <vector>

#include "core/file_descriptor.h"
#include "flight/call_text.h"
#include "flight/diagnose.h"
#include "flight/rank_record.h"
#include "support/temporary_folder.h"
#include "tutti/core/error.h"

namespace tutti::recorder_test {
namespace {

using flight::EntryState;
using flight::Recorder;
using test::TemporaryFolder;

flight::RankRecord only_record(const TemporaryFolder& folder) {
  const auto records = flight::read_records({folder.path()});
  EXPECT_EQ(records.size(), 1U);
  return records.front();
}

TEST(Recorder, WhatAnEntryHolds) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder.path(), {.rank = 2, .world_size = 4, .restart = 1});
  recorder->set_step(11);
  const auto sum = recorder->record_call({.text = "all_reduce(float32 [4])",
                                          .communicator = "job/0-ddp",
                                          .operation = 5,
                                          .bytes = 16,
                                          .group_size = 4,
                                          .call_site = {.file = "train.cpp", .line = 42}});
  auto record = only_record(folder);
  EXPECT_EQ(record.rank, 2);
  EXPECT_EQ(record.world_size, 4);
  EXPECT_EQ(record.restart, 1);
  EXPECT_TRUE(record.running);
  EXPECT_EQ(record.program, "test_flight");
  ASSERT_EQ(record.operations.size(), 1U);
  EXPECT_EQ(record.operations[0].text, "all_reduce(float32 [4])");
  EXPECT_EQ(record.operations[0].communicator, "job/0-ddp");
  EXPECT_EQ(record.operations[0].operation, 5U);
  EXPECT_EQ(record.operations[0].bytes, 16U);
  EXPECT_EQ(record.operations[0].step, 11);
  EXPECT_EQ(record.operations[0].group_size, 4);
  EXPECT_EQ(record.operations[0].call_site, "train.cpp:42");
  EXPECT_EQ(record.operations[0].state, EntryState::scheduled);

  recorder->record_start(sum);
  EXPECT_EQ(only_record(folder).operations[0].state, EntryState::started);
  recorder->record_end(sum, EntryState::completed);
  record = only_record(folder);
  EXPECT_EQ(record.operations[0].state, EntryState::completed);
  EXPECT_LE(record.operations[0].called, record.operations[0].started);
  EXPECT_LE(record.operations[0].started, record.operations[0].ended);
}

TEST(Recorder, OldestEntriesAreReplacedButNotThoseInFlight) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder.path(), {});
  const auto slow = recorder->record_call({.text = "slow", .communicator = "job", .operation = 0});
  constexpr std::uint64_t others = 3 * flight::record_capacity;
  for (std::uint64_t number = 1; number <= others; ++number) {
    recorder->record_end(recorder->record_call({.text = "quick", .communicator = "job", .operation = number}),
                         EntryState::completed);
  }
  const auto operations = only_record(folder).operations;
  ASSERT_EQ(operations.size(), flight::record_capacity);
  EXPECT_EQ(operations.front().text, "slow");
  EXPECT_EQ(operations.back().operation, others);
  recorder->record_end(slow, EntryState::failed);
  EXPECT_EQ(only_record(folder).operations.front().state, EntryState::failed);
}

TEST(Recorder, AReplacedEntryIsNotWrittenAgain) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder.path(), {});
  // All entries are in flight, so the oldest entry is replaced.
  const auto first = recorder->record_call({.text = "first", .communicator = "job"});
  for (std::uint32_t i = 0; i < flight::record_capacity; ++i)
    recorder->record_call({.text = "later", .communicator = "job"});
  recorder->record_end(first, EntryState::failed);
  for (const auto& operation : only_record(folder).operations) {
    EXPECT_EQ(operation.text, "later");
    EXPECT_EQ(operation.state, EntryState::scheduled);
  }
}

TEST(Recorder, LongNamesAreCutOff) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder.path(), {});
  const std::string file(1000, 'c');
  recorder->record_call({.text = std::string(1000, 'a'),
                         .communicator = std::string(1000, 'b'),
                         .call_site = {.file = file.c_str(), .line = 7}});
  const auto operation = only_record(folder).operations.at(0);
  EXPECT_EQ(operation.text, std::string(sizeof(flight::RecordEntry::text) - 1, 'a'));
  EXPECT_EQ(operation.communicator, std::string(sizeof(flight::RecordEntry::communicator) - 1, 'b'));
  EXPECT_EQ(operation.call_site, std::string(sizeof(flight::RecordEntry::file) - 1, 'c') + ":7");
}

TEST(Recorder, ThreadsWriteTogether) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder.path(), {});
  constexpr int count = 200;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < count; ++i) {
        const auto entry = recorder->record_call({.text = "sum", .communicator = "job"});
        recorder->record_start(entry);
        recorder->record_end(entry, EntryState::completed);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const auto operations = only_record(folder).operations;
  EXPECT_EQ(operations.size(), 4U * count);
  for (const auto& operation : operations) EXPECT_EQ(operation.state, EntryState::completed);
}

TEST(Recorder, ASecondConnectionOfAProcessHasItsOwnFile) {
  const TemporaryFolder folder;
  auto first = Recorder::create(folder.path(), {});
  const auto second = Recorder::create(folder.path(), {});
  second->record_call({.text = "of the second", .communicator = "job"});
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "rank_0.flight"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "rank_0-2.flight"));
  EXPECT_TRUE(flight::read_record(folder.path() / "rank_0.flight").operations.empty());
  EXPECT_EQ(flight::read_record(folder.path() / "rank_0-2.flight").operations.at(0).communicator, "job#2");

  // The record of an ended process is replaced.
  first.reset();
  EXPECT_FALSE(flight::read_record(folder.path() / "rank_0.flight").running);
  first = Recorder::create(folder.path(), {.restart = 1});
  EXPECT_TRUE(flight::read_record(folder.path() / "rank_0.flight").running);
  EXPECT_EQ(flight::read_record(folder.path() / "rank_0.flight").restart, 1);
}

// Another reader asks with a lock, too.
TEST(Recorder, TwoReadersAtATimeTakeNoEndedProcessForARunningOne) {
  const TemporaryFolder folder;
  Recorder::create(folder.path(), {.rank = 0});
  const auto path = folder.path() / "rank_0.flight";
  const FileDescriptor reader(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(reader.get(), LOCK_SH | LOCK_NB), 0);
  EXPECT_FALSE(flight::read_record(path).running);
  const auto next = Recorder::create(folder.path(), {.rank = 0});
  EXPECT_TRUE(only_record(folder).running);
}

TEST(Recorder, AnEntryIsReadByItsId) {
  const TemporaryFolder folder;
  for (const auto& recorder : {Recorder::create(folder.path(), {}), Recorder::create_in_memory({})}) {
    const auto id = recorder->record_call({.text = "all_reduce(float32 [4], 'loss')",
                                           .communicator = "job",
                                           .operation = 5,
                                           .call_site = {.file = "train.cpp", .line = 42}});
    const auto operation = flight::read_entry(id, ::getpid());
    ASSERT_TRUE(operation);
    EXPECT_EQ(operation->text, "all_reduce(float32 [4], 'loss')");
    EXPECT_EQ(flight::describe_call(*operation), "all_reduce 'loss' (operation 5, train.cpp:42)");
    EXPECT_FALSE(flight::read_entry({}, ::getpid()));
    EXPECT_FALSE(flight::read_entry({.serial = id.serial + 1, .record = id.record}, ::getpid()));
    EXPECT_FALSE(flight::read_entry({.serial = id.serial, .record = STDIN_FILENO}, ::getpid()));
    EXPECT_FALSE(flight::read_entry({.serial = id.serial, .record = -1}, ::getpid()));
  }
}

TEST(Recorder, WithoutAFolderTheRecordIsInMemory) {
  for (const char* folder : {static_cast<const char*>(nullptr), "", "/proc/no/such/folder"}) {
    const auto recorder = flight::make_recorder({}, folder);
    ASSERT_TRUE(recorder);
    EXPECT_TRUE(flight::read_entry(recorder->record_call({.text = "barrier()", .communicator = "job"}), ::getpid()));
  }
}

TEST(Recorder, ALimitOfFileSizesDoesNotEndTheProcess) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{.rlim_cur = flight::record_bytes(flight::record_capacity) - 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  EXPECT_FALSE(flight::make_recorder({}, folder.path().c_str()));
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(CallText, OfARecordAndOfAMessage) {
  const auto described = [](const std::string& text) {
    return flight::describe_call({.text = text, .communicator = "job", .operation = 3});
  };
  for (const std::string name : {"", "loss", "it's", "(a')"}) {
    for (const std::string arguments : {"", "float32 [4, 3], sum"}) {
      EXPECT_EQ(described(flight::call_text("all_reduce", arguments, name)),
                flight::describe_call("all_reduce", name, 3));
    }
  }
  EXPECT_EQ(flight::call_text("barrier", "", "epoch"), "barrier('epoch')");
  EXPECT_EQ(flight::call_text("reduce", "sum", ""), "reduce(sum)");
  EXPECT_EQ(described("gradient sum"), "gradient sum (operation 3)");
  // The name is the user's call, which led to this operation.
  EXPECT_EQ(described("all_gather_object('reduce(sum)')"), "reduce(sum) (operation 3)");
  EXPECT_EQ(flight::describe_call("all_reduce", "reduce(sum)", 3, "train.cpp:42"),
            "reduce(sum) (operation 3, train.cpp:42)");
  EXPECT_EQ(flight::describe_call("all_reduce", "loss (train)", 3), "all_reduce 'loss (train)' (operation 3)");
  EXPECT_EQ(described("barrier('trunca"), "barrier 'trunca' (operation 3)");
}

TEST(Recorder, AFolderThatCannotBeMadeIsAnError) {
  EXPECT_THROW(Recorder::create("/proc/no/such/folder", {}), std::system_error);
}

TEST(Recorder, ARecordThatIsBeingMadeIsPassedOver) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "rank_0.flight").flush();
  std::ofstream(folder.path() / "rank_2.flight") << std::string(flight::record_bytes(1), '\0');
  EXPECT_TRUE(flight::read_records({folder.path()}).empty());
  EXPECT_THAT(flight::diagnose({}, 0), ::testing::HasSubstr("still starting"));
  const auto recorder = Recorder::create(folder.path(), {.rank = 1, .world_size = 3});
  EXPECT_EQ(only_record(folder).rank, 1);
}

TEST(Recorder, DamagedFilesAreRefused) {
  const TemporaryFolder folder;
  Recorder::create(folder.path(), {.rank = 1, .world_size = 2});
  const auto file = folder.path() / "rank_1.flight";
  std::string good(std::filesystem::file_size(file), '\0');
  std::ifstream(file, std::ios::binary).read(good.data(), static_cast<std::streamsize>(good.size()));
  const auto refuses = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_THROW(flight::read_record(file), UsageError);
  };
  const auto with = [&](std::size_t at, std::uint32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    return bytes;
  };
  refuses("");
  refuses(good.substr(0, 100));
  refuses(good.substr(0, good.size() - 1));
  refuses(good + "x");
  refuses("x" + good.substr(1));
  refuses(good.substr(0, 7) + "1" + good.substr(8));  // the format of an older tutti
  refuses(with(offsetof(flight::RecordHeader, entry_bytes), 8));
  refuses(with(offsetof(flight::RecordHeader, capacity), 0xffffffff));
  refuses(with(offsetof(flight::RecordHeader, rank), 2));
  refuses(with(offsetof(flight::RecordHeader, world_size), 0));

  // An entry with an unknown state is ignored. Control characters are not printed.
  std::string bytes = with(flight::record_bytes(0) + offsetof(flight::RecordEntry, serial), 1);
  const std::uint32_t unknown_state = 77;
  std::memcpy(bytes.data() + flight::record_bytes(0) + offsetof(flight::RecordEntry, state), &unknown_state, 4);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  EXPECT_TRUE(flight::read_record(file).operations.empty());
  bytes[flight::record_bytes(0) + offsetof(flight::RecordEntry, state)] = 0;
  for (int i = 1; i < 4; ++i) bytes[flight::record_bytes(0) + offsetof(flight::RecordEntry, state) + i] = 0;
  for (std::size_t i = 0; i < 80; ++i)
    bytes[flight::record_bytes(0) + offsetof(flight::RecordEntry, text) + i] = '\x1b';
  for (std::size_t i = 0; i < 40; ++i)
    bytes[flight::record_bytes(0) + offsetof(flight::RecordEntry, file) + i] = '\x1b';
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  EXPECT_EQ(flight::read_record(file).operations.at(0).text, std::string(80, '?'));
  EXPECT_THAT(flight::read_record(file).operations.at(0).call_site, ::testing::StartsWith(std::string(36, '?')));
}

}  // namespace
}  // namespace tutti::recorder_test
