// Disks that fail, ranks that disagree, and damaged files.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <optional>

#include "checkpoint/manifest.h"
#include "checkpoint/scratch.h"
#include "checkpoint/state_json.h"
#include "checkpoint/states.h"
#include "checkpoint/write_checkpoint.h"
#include "support/process_case.h"
#include "support/ranks.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::test::checkpoint_failures_test {
namespace {

// Files of more than `bytes` cannot be written while this object exists.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

/// Expects that `folder` is empty when no rank writes there any more.
void expect_empty(const Communicator& communicator, const std::filesystem::path& folder) {
  communicator.barrier().wait();
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  communicator.barrier().wait();
}

void check_disk_error(const Communicator& communicator, const std::filesystem::path& folder) {
  for (const int broken : {0, 1}) {
    auto content = small_content(1, communicator.rank());
    if (communicator.rank() == broken) content.per_rank.set("large", at::zeros({1 << 20}));
    expect_error<CheckpointError>(
        [&] { write_checkpoint(folder / "checkpoint_1", content, communicator); },
        {"rank " + std::to_string(broken), "rank_" + std::to_string(broken) + ".safetensors", "File too large"});
    EXPECT_FALSE(communicator.failed());
    expect_empty(communicator, folder);
  }
}
void check_good_disk(const Communicator& communicator, const std::filesystem::path& folder) {
  write_checkpoint(folder / "checkpoint_1", small_content(1, communicator.rank()), communicator);
  EXPECT_NO_THROW(read_checkpoint(folder / "checkpoint_1"));
}
TEST(CheckpointFailures, ADiskErrorOnOneRankReachesAllRanksAndLeavesNoFiles) {
  const TemporaryFolder folder;
  {
    const FileSizeLimit limit(1 << 16);  // applies to the process, so to both ranks
    run_thread_ranks(2, [&](const Communicator& communicator) { check_disk_error(communicator, folder.path()); });
  }
  run_thread_ranks(2, [&](const Communicator& communicator) { check_good_disk(communicator, folder.path()); });
}
// All ranks write the same amount; the disk of one rank is full.
const ProcessCase full_disk("checkpoint: a full disk", [](const Communicator& communicator,
                                                          const std::filesystem::path& folder) {
  for (const int broken : {0, 1, 2}) {
    auto content = small_content(1, communicator.rank());
    content.per_rank.set("large", at::zeros({1 << 20}));
    std::optional<FileSizeLimit> limit;
    if (communicator.rank() == broken) limit.emplace(1 << 16);
    const std::string failed_rank = "rank " + std::to_string(broken) + ": ";
    try {
      write_checkpoint(folder / "checkpoint_1", content, communicator);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CheckpointError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(failed_rank)) << error.what();
      EXPECT_EQ(std::string(error.what()).find("; rank "), std::string::npos) << error.what();
    }
    expect_empty(communicator, folder);
  }
  check_good_disk(communicator, folder);
});

const ProcessCase not_savable("checkpoint: a value that cannot be saved", [](const Communicator& communicator,
                                                                             const std::filesystem::path& folder) {
  auto content = small_content(1, communicator.rank());
  if (communicator.rank() == 1) content.per_rank.set("note", std::string("\xff"));
  expect_error<UsageError>([&] { write_checkpoint(folder / "c", content, communicator); }, {"rank 1", "'note'"});
  expect_empty(communicator, folder);
});
TEST(CheckpointFailures, AValueThatCannotBeSavedOnOneRankThrowsOnAllRanks) {
  not_savable.on_threads({2});
}

const ProcessCase no_folder("checkpoint: a folder that cannot be made", [](const Communicator& communicator,
                                                                           const std::filesystem::path& folder) {
  if (communicator.rank() == 0) write_content(folder / "file", "");
  communicator.barrier().wait();
  expect_error<CheckpointError>(
      [&] { write_checkpoint(folder / "file" / "c", small_content(1, communicator.rank()), communicator); },
      {"rank 0", "file"});
});
TEST(CheckpointFailures, AFolderThatCannotBeCreatedThrowsOnAllRanks) {
  no_folder.on_threads({2});
}

// Creates files in another folder than the one that is asked for.
class OtherDisk final : public checkpoint::FileSystem {
 public:
  explicit OtherDisk(std::filesystem::path folder) : folder_(std::move(folder)) {}
  int open(const std::filesystem::path& path, int flags) const override {
    return FileSystem::open((flags & O_CREAT) != 0 ? folder_ / path.filename() : path, flags);
  }

 private:
  std::filesystem::path folder_;
};

// Two ranks with different folders.
const ProcessCase no_common_disk("checkpoint: no common file system", [](const Communicator& all,
                                                                         const std::filesystem::path& folder) {
  const auto pair = all.split(all.rank() < 2 ? 0 : -1);
  if (!pair) return;
  const auto mine = folder / std::to_string(pair->rank());
  const auto write = [&] { write_checkpoint(mine / "checkpoint_1", small_content(1, pair->rank()), *pair); };
  expect_error<CheckpointError>(write, {"rank 1", "one file system"});
  // The same error if rank 1 sees the folder but writes its files elsewhere.
  const OtherDisk other(folder / "1");
  const auto& files = pair->rank() == 1 ? other : checkpoint::FileSystem::system();
  if (pair->rank() == 1) std::filesystem::create_directories(folder / "1");
  expect_error<CheckpointError>(
      [&] {
        checkpoint::write_checkpoint(folder / "0" / "checkpoint_1", small_content(1, pair->rank()), *pair, files);
      },
      {"rank 0", "rank_1.json", "one file system"});
  pair->barrier().wait();
  EXPECT_TRUE(std::filesystem::is_empty(folder / "0"));
});
TEST(CheckpointFailures, RanksWithoutACommonFileSystemAreFound) {
  no_common_disk.on_threads({2});
}

const ProcessCase different("checkpoint: ranks that write different ones", [](const Communicator& communicator,
                                                                              const std::filesystem::path& folder) {
  const int step = communicator.rank() == 1 ? 1 : 0;
  expect_error<MismatchError>([&] { write_checkpoint(folder / "c", small_content(step, 0), communicator); },
                              {"step 0", "step 1"});
  expect_empty(communicator, folder);
});
TEST(CheckpointFailures, DifferentCheckpointsAreAMismatchError) {
  different.on_threads({2});
}

// A checkpoint that tests damage.
class Damaged : public testing::Test {
 protected:
  void SetUp() override {
    run_thread_ranks(2, [&](const Communicator& communicator) {
      write_checkpoint(path_, small_content(4, communicator.rank()), communicator);
    });
  }
  void expect_refused(std::initializer_list<std::string> parts) const {
    expect_error<CheckpointError>([&] { read_checkpoint(path_); }, parts);
  }
  // Replaces the manifest by one with a valid checksum.
  void write_manifest(const std::string& rest) const {
    std::array<char, 16> crc{};
    std::snprintf(crc.data(), crc.size(), "%08x", crc32c(std::as_bytes(std::span(rest))));
    write_content(path_ / "manifest.json", std::string("{\"crc32c\": \"") + crc.data() + "\"," + rest);
  }
  std::string rest_of_manifest() const { return content_of(path_ / "manifest.json").substr(22); }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "checkpoint_4";
};

TEST_F(Damaged, EveryMissingFileIsNamed) {
  for (const char* name : {"manifest.json", "state.json", "model.safetensors", "rank_1.json", "rank_0.safetensors"}) {
    std::filesystem::rename(path_ / name, folder_.path() / "aside");
    expect_refused({name, "choose another"});
    std::filesystem::rename(folder_.path() / "aside", path_ / name);
  }
  EXPECT_NO_THROW(read_checkpoint(path_));
}

TEST_F(Damaged, FlippedBitsAreFound) {
  for (const char* name : {"manifest.json", "state.json", "model.safetensors", "rank_1.json", "rank_1.safetensors"}) {
    const std::string whole = content_of(path_ / name);
    for (std::size_t i = 0; i < whole.size(); i += 3) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      write_content(path_ / name, damaged);
      expect_refused({name});
    }
    write_content(path_ / name, whole);
  }
  EXPECT_NO_THROW(read_checkpoint(path_));
}

TEST_F(Damaged, EveryTruncatedFileIsNamed) {
  for (const char* name : {"manifest.json", "state.json", "model.safetensors", "rank_1.json"}) {
    const std::string whole = content_of(path_ / name);
    for (const std::size_t size : {std::size_t{0}, whole.size() / 2, whole.size() - 1}) {
      write_content(path_ / name, whole.substr(0, size));
      expect_refused({name});
    }
    write_content(path_ / name, whole);
  }
}

TEST_F(Damaged, AFileOfAnotherCheckpointIsRefused) {
  write_checkpoint(folder_.path() / "other", small_content(5, 0), Communicator());
  std::filesystem::copy_file(folder_.path() / "other" / "model.safetensors", path_ / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused({"model.safetensors", "damaged"});
}

TEST_F(Damaged, AnUnknownVersionIsRefused) {
  const std::string rest = rest_of_manifest();
  write_manifest(rest);
  EXPECT_NO_THROW(read_checkpoint(path_));
  write_manifest(replaced(rest, "\"version\": 1", "\"version\": 2"));
  expect_refused({"manifest.json", "version 2"});
  expect_error<CheckpointError>([&] { read_checkpoint_info(path_); }, {"version 2"});
  write_manifest(replaced(rest, "tutti checkpoint", "other"));
  expect_refused({"manifest.json", "another format"});
}

TEST_F(Damaged, AForgedManifestIsRefused) {
  const std::string rest = rest_of_manifest();
  const auto expect = [&](const std::string& from, const std::string& to) {
    write_manifest(replaced(rest, from, to));
    expect_refused({path_.string()});
  };
  expect("\"world_size\": 2", "\"world_size\": 0");
  expect("\"world_size\": 2", "\"world_size\": 3");
  expect("\"world_size\": 2", "\"world_size\": 2147483647");
  expect("\"world_size\": 2", "\"world_size\": 99999999999");
  expect("\"step\": 4", "\"step\": 4.0");
  expect("\"step\": 4", "\"stop\": 4");
  expect("rank_0.json", "../rank.json");
  expect("\"files\"", "\"fills\"");
  write_manifest(std::string(1 << 20, '['));
  expect_refused({"manifest.json"});
  write_content(path_ / "manifest.json", "{\"format\": \"someone else's\", \"version\": 1, \"files\": {}}");
  expect_refused({"manifest.json", "not written by tutti"});
}

// A sparse file of 3 GiB: nothing of it is read.
TEST_F(Damaged, AHugeManifestIsRefusedBeforeItIsRead) {
  std::filesystem::resize_file(path_ / "manifest.json", std::uintmax_t{3} << 30);
  expect_refused({"manifest.json", "3221225472 bytes", "the limit is"});
  expect_error<CheckpointError>([&] { read_checkpoint_info(path_); }, {"manifest.json", "the limit is"});
}

TEST_F(Damaged, AHugeStateFileIsRefusedBeforeItIsRead) {
  // The forged manifest declares the size that the file has.
  const std::string rest = rest_of_manifest();
  const std::string declared = "\"size\": " + std::to_string(std::filesystem::file_size(path_ / "rank_1.json"));
  std::string forged = rest;
  const auto entry = forged.find("\"rank_1.json\"");
  forged.replace(forged.find(declared, entry), declared.size(), "\"size\": 3221225472");
  std::filesystem::resize_file(path_ / "rank_1.json", std::uintmax_t{3} << 30);
  write_manifest(forged);
  expect_refused({"rank_1.json", "the limit is"});
}

TEST_F(Damaged, DeeplyNestedJsonIsRefused) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(checkpoint::parse_json(nested(16)));
  expect_error<CheckpointError>([&] { checkpoint::parse_json(nested(17)); }, {"nested deeper than 16"});
  EXPECT_NO_THROW(checkpoint::parse_json("{\"" + std::string(100, '[') + "\\\"" + std::string(100, '{') + "\": 1}"));
  const std::string rest = rest_of_manifest();
  write_manifest(replaced(rest, "\"files\":", "\"other\": " + nested(1000) + ", \"files\":"));
  expect_refused({"manifest.json", "nested deeper"});
}

TEST_F(Damaged, AMissingFolderIsNamed) {
  expect_error<CheckpointError>([&] { read_checkpoint(folder_.path() / "none"); },
                                {"none", "not a complete checkpoint"});
}

}  // namespace
}  // namespace tutti::test::checkpoint_failures_test
