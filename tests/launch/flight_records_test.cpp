#include "launch/flight_records.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>

#include "flight/recorder.h"
#include "support/temporary_folder.h"

namespace tutti::flight_records_test {
namespace {

namespace fs = std::filesystem;

/// A folder with the record of a process that has ended, that of one that runs, and a file of the user.
class EarlierFiles {
 public:
  explicit EarlierFiles(const fs::path& folder)
      : ended_(folder / "rank_2.flight"), running_(folder / "rank_3.flight"), other_(folder / "notes.txt") {
    for (const auto& path : {ended_, running_, other_}) std::ofstream(path) << "content";
    lock_ = FileDescriptor(::open(running_.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::flock(lock_.get(), LOCK_EX), 0);
  }

  void expect_only_the_ended_one_removed() const {
    EXPECT_FALSE(fs::exists(ended_));
    EXPECT_TRUE(fs::exists(running_));
    EXPECT_TRUE(fs::exists(other_));
  }

 private:
  fs::path ended_, running_, other_;
  FileDescriptor lock_;
};

// On several nodes the name of the folder depends only on the address and the port of the job.
TEST(FlightRecords, AJobRemovesThoseOfAnEarlierJobOfItsName) {
  ::unsetenv(flight::records_variable);  // NOLINT(concurrency-mt-unsafe): one thread
  const std::string name = "tutti-test-" + std::to_string(::getpid()) + "-node1";
  flight::JobFolder earlier(name);
  const EarlierFiles files(earlier.path());
  const FlightRecords records(name);
  EXPECT_EQ(records.folder(), earlier.path());
  files.expect_only_the_ended_one_removed();
}

TEST(FlightRecords, AJobRemovesThoseOfAnEarlierJobInTheFolderOfTheUser) {
  const test::TemporaryFolder folder;
  const EarlierFiles files(folder.path());
  ::setenv(flight::records_variable, folder.path().c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
  const FlightRecords records("job");
  ::unsetenv(flight::records_variable);  // NOLINT(concurrency-mt-unsafe): one thread
  EXPECT_EQ(records.folder(), folder.path());
  files.expect_only_the_ended_one_removed();
}

// The ranks of an attempt that fail before they connect leave the records of the earlier attempt in place.
TEST(FlightRecords, AnAttemptIsNotExplainedByRecordsOfAnEarlierOne) {
  const test::TemporaryFolder folder;
  ::setenv(flight::records_variable, folder.path().c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
  FlightRecords records("job");
  ::unsetenv(flight::records_variable);  // NOLINT(concurrency-mt-unsafe): one thread
  const auto record_failed_call = [&](const flight::RecordOwner& owner) {
    const auto recorder = flight::Recorder::create(folder.path(), owner);
    recorder->record_end(recorder->record_call({.text = "barrier", .communicator = "job"}), flight::EntryState::failed);
  };
  record_failed_call({.rank = 0, .world_size = 2, .restart = 0});
  EXPECT_EQ(records.ranks_with_failed_calls(0), std::set{0});
  EXPECT_NE(records.describe_failure(0), "");
  EXPECT_EQ(records.ranks_with_failed_calls(1), std::set<int>());
  EXPECT_EQ(records.describe_failure(1), "");
  record_failed_call({.rank = 1, .world_size = 2, .restart = 1});
  EXPECT_EQ(records.ranks_with_failed_calls(1), std::set{1});
}

}  // namespace
}  // namespace tutti::flight_records_test
