// Two jobs that save into one folder, of one rank each, on file systems with and without locks.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/folder_names.h"
#include "checkpoint/owner_file.h"
#include "checkpoint/prune.h"
#include "checkpoint/reservation.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "checkpoint/test_files.h"
#include "checkpoint/write_checkpoint.h"
#include "support/ranks.h"
#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti::test::two_jobs_test {
namespace {

using checkpoint::FileSystem;
using checkpoint::Reservation;
using Call = TestFiles::Call;

constexpr int saves = 30;

// NFS and FUSE refuse locks, or renames that do not replace, with these reasons.
TestFiles without_support(int reason) {
  return TestFiles([reason](const TestFiles::Event& event) {
    return event.call == Call::lock || event.call == Call::rename_to_new ? reason : 0;
  });
}

void save_often(const std::filesystem::path& folder, const std::string& run, const FileSystem& files) {
  const CheckpointFolder checkpoints(folder);
  for (int step = 0; step < saves; ++step) {
    auto content = small_content(step, 0);
    content.run = run;
    auto reserved = std::make_shared<Reservation>(Reservation::take_next(folder, step, files));
    const auto path = reserved->folder();
    checkpoint::write_checkpoint(path, content, Communicator(), files, std::move(reserved));
    checkpoint::prune(checkpoints, {.keep_last = 3}, run, files);
  }
}

// Each run has its newest 3 checkpoints, all are whole, and nothing else is left.
void expect_three_of_each(const std::filesystem::path& folder) {
  std::map<std::string, int> of_run;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ASSERT_TRUE(checkpoint::checkpoint_number(entry.path())) << entry.path();
    const Checkpoint read = read_checkpoint(entry.path());
    EXPECT_TRUE(same(read.shared, small_content(read.info.step, 0).shared));
    EXPECT_GE(read.info.step, saves - 3);
    ++of_run[read.info.run];
  }
  EXPECT_EQ(of_run, (std::map<std::string, int>{{"a", 3}, {"b", 3}}));
}

void check_two_jobs(const FileSystem& files) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "project" / "checkpoints";
  {
    const std::jthread first([&] { EXPECT_NO_THROW(save_often(folder, "a", files)); });
    const std::jthread second([&] { EXPECT_NO_THROW(save_often(folder, "b", files)); });
  }
  expect_three_of_each(folder);
}

TEST(TwoJobs, KeepTheirCheckpointsWhole) {
  check_two_jobs(FileSystem::system());
}

TEST(TwoJobs, KeepTheirCheckpointsWholeWithoutLocksAndRenamesToNewNames) {
  for (const int reason : {ENOLCK, ENOSYS, EINVAL, EOPNOTSUPP}) {
    SCOPED_TRACE(reason);
    check_two_jobs(without_support(reason));
  }
}

constexpr const char* folder_variable = "TUTTI_TEST_FOLDER";

// Each process is a job of its own.
const RankProgram job("two_jobs_job", [] {
  const std::string rank = std::getenv("RANK");
  save_often(std::getenv(folder_variable), rank == "0" ? "a" : "b", FileSystem::system());
});
TEST(TwoJobs, OfTwoProcessesKeepTheirCheckpointsWhole) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "checkpoints";
  expect_success(run_processes(job, 2, {.variables = {{folder_variable, folder.string()}}}));
  expect_three_of_each(folder);
}

TEST(Reservation, IsOfOneProcessAtATimeAndNamesIt) {
  for (const bool locks : {true, false}) {
    SCOPED_TRACE(locks);
    const TestFiles files = locks ? TestFiles() : without_support(ENOLCK);
    const TemporaryFolder scratch;
    const auto folder = scratch.path() / "checkpoint_3";
    {
      const Reservation first = Reservation::take(folder, files);
      first.make_partial();
      EXPECT_FALSE(Reservation::try_take(folder, files));
      expect_error<UsageError>([&] { Reservation::take(folder, files); },
                               {"process " + std::to_string(::getpid()), folder.string(), ".checkpoint_3.owner"});
      // Another job's retention leaves the partial folder alone.
      checkpoint::prune(CheckpointFolder(scratch.path()), {.keep_last = 1}, "", files);
      EXPECT_TRUE(std::filesystem::exists(first.partial()));
      EXPECT_EQ(Reservation::take_next(scratch.path(), 5, files).folder().filename(), "checkpoint_0_step_5");
    }
    EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
    EXPECT_TRUE(Reservation::try_take(folder, files));
  }
}

TEST(Reservation, TheNextNameIsNotOneThatAnotherJobWrites) {
  const TemporaryFolder scratch;
  const Reservation first = Reservation::take_next(scratch.path(), 7);
  const Reservation second = Reservation::take_next(scratch.path(), 7);
  EXPECT_EQ(first.folder().filename(), "checkpoint_0_step_7");
  EXPECT_EQ(second.folder().filename(), "checkpoint_1_step_7");
}

TEST(Reservation, DoesNotReplaceACheckpointThatAppearedMeanwhile) {
  for (const bool renames : {true, false}) {
    SCOPED_TRACE(renames);
    const TestFiles files = renames ? TestFiles() : without_support(EINVAL);
    const TemporaryFolder scratch;
    const auto folder = scratch.path() / "checkpoint_3";
    const Reservation reservation = Reservation::take(folder, files);
    reservation.make_partial();
    write_content(reservation.partial() / "file", "new");
    for (const bool empty : {false, true}) {
      std::filesystem::create_directory(folder);
      if (!empty) write_content(folder / "file", "old");
      expect_error<CheckpointError>([&] { reservation.commit(); }, {folder.string(), "another process"});
      EXPECT_EQ(content_of(folder / "file"), empty ? "" : "old");
      std::filesystem::remove_all(folder);
    }
    reservation.commit();
    EXPECT_EQ(content_of(folder / "file"), "new");
  }
}

// The folder appears between the check and the rename, which then is the one that replaces empty folders only.
TEST(Reservation, WithoutSupportOfTheFileSystemAFullFolderIsNotReplacedEither) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "checkpoint_3";
  const TestFiles files([&](const TestFiles::Event& event) {
    if (event.call == Call::lock || event.call == Call::rename_to_new) return ENOSYS;
    if (event.call == Call::rename) {
      std::filesystem::create_directory(folder);
      write_content(folder / "file", "old");
    }
    return 0;
  });
  const Reservation reservation = Reservation::take(folder, files);
  reservation.make_partial();
  expect_error<CheckpointError>([&] { reservation.commit(); }, {folder.string(), "another process"});
  EXPECT_EQ(content_of(folder / "file"), "old");
}

TEST(Reservation, AnAbandonedOneIsTakenOverWithItsPartialFolder) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "checkpoint_3";
  Reservation first = Reservation::take(folder);
  first.make_partial();
  first.abandon();
  EXPECT_TRUE(std::filesystem::exists(first.partial()));
  const Reservation second = Reservation::take(folder);
  second.make_partial();
  EXPECT_FALSE(std::filesystem::exists(first.partial()));
  EXPECT_TRUE(std::filesystem::exists(second.partial()));
}

// A retention that looks at the owner file between its creation and its lock removes it. The owner tries again.
TEST(Reservation, NoticesThatItsNewFileWasRemoved) {
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "checkpoint_3";
  int looks = 0;
  const TestFiles files([&](const TestFiles::Event& event) {
    if (event.call == Call::lock && ++looks == 1) std::filesystem::remove(event.path);
    return 0;
  });
  const Reservation reservation = Reservation::take(folder, files);
  EXPECT_EQ(looks, 2);
  EXPECT_FALSE(Reservation::try_take(folder));
}

TEST(OwnerFile, OnlyAProcessOfThisBootCanBeKnownToHaveExited) {
  auto owner = nlohmann::json::parse(checkpoint::owner_text());
  EXPECT_FALSE(checkpoint::owner_has_exited(owner.dump()));
  owner["start_time"] = owner["start_time"].get<std::uint64_t>() + 1;  // the PID was given to another process
  EXPECT_TRUE(checkpoint::owner_has_exited(owner.dump()));
  auto elsewhere = owner;
  elsewhere["boot"] = "of another machine";
  EXPECT_FALSE(checkpoint::owner_has_exited(elsewhere.dump()));
  auto contained = owner;
  contained["namespace_inode"] = 1;
  EXPECT_FALSE(checkpoint::owner_has_exited(contained.dump()));
  for (const char* text : {"", "{", "[]", "{}", R"({"pid": "x", "boot": 3})"}) {
    EXPECT_FALSE(checkpoint::owner_has_exited(text)) << text;
  }
}

TEST(OwnerFile, OneThatIsDeeplyNestedNamesNoProcess) {
  constexpr std::size_t deep = 1'000'000;
  const std::string text =
      R"({"pid": 1, "host": "a", "more": )" + std::string(deep, '[') + std::string(deep, ']') + "}";
  EXPECT_EQ(checkpoint::owner_name(text), "another process");
  EXPECT_FALSE(checkpoint::owner_has_exited(text));
}

// Without locks, the file of an exited process of this machine is taken over; any other stays.
TEST(Reservation, WithoutLocksTheFileOfAnExitedProcessIsTakenOver) {
  const TestFiles files = without_support(ENOLCK);
  const TemporaryFolder scratch;
  const auto folder = scratch.path() / "checkpoint_3";
  auto owner = nlohmann::json::parse(checkpoint::owner_text());
  owner["start_time"] = owner["start_time"].get<std::uint64_t>() + 1;
  write_content(scratch.path() / ".checkpoint_3.owner", owner.dump());
  std::filesystem::create_directory(scratch.path() / ".checkpoint_3.0123456789abcdef.partial");
  checkpoint::prune(CheckpointFolder(scratch.path()), {}, "", files);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
  owner["boot"] = "of another machine";
  write_content(scratch.path() / ".checkpoint_3.owner", owner.dump());
  checkpoint::prune(CheckpointFolder(scratch.path()), {}, "", files);
  EXPECT_FALSE(Reservation::try_take(folder, files));
}

TEST(FolderNames, HiddenNamesTellTheirFolder) {
  const std::filesystem::path folder = "runs/checkpoint_12_step_3";
  const std::string token = checkpoint::new_token();
  EXPECT_NE(token, checkpoint::new_token());
  for (const auto& hidden : {checkpoint::partial_of(folder, token), checkpoint::removed_of(folder, token),
                             checkpoint::owner_of(folder), checkpoint::partial_of(folder, "")}) {
    EXPECT_EQ(checkpoint::folder_of_hidden(hidden), folder) << hidden;
    EXPECT_TRUE(checkpoint::is_leftover(hidden)) << hidden;
  }
  EXPECT_EQ(checkpoint::folder_of_hidden("runs/.a.b.partial"), std::filesystem::path("runs/a.b"));
  for (const char* no_folder : {"runs/.partial", "runs/.removed", "runs/.owner"}) {
    EXPECT_EQ(checkpoint::folder_of_hidden(no_folder), std::nullopt) << no_folder;
  }
  for (const char* other : {"runs/checkpoint_1", "runs/.partial", "runs/.x", "runs/.checkpoint_1.part"}) {
    EXPECT_FALSE(checkpoint::is_leftover(other)) << other;
  }
}

}  // namespace
}  // namespace tutti::test::two_jobs_test
