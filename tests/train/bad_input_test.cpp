// Invalid input of a user: the error says in one line what is wrong and what to do. 1 process, and 1, 2 and 3 ranks as
// threads where ranks matter.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "data/data_files.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/data/readers/cifar.h"
#include "tutti/data/readers/mnist.h"
#include "tutti/detail/data/token_file.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::bad_input_test {
namespace {

template <typename Expected, typename Body>
void expect_one_line(const Body& body, const std::vector<std::string>& parts) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Expected& error) {
    const std::string text = error.what();
    EXPECT_EQ(std::ranges::count(text, '\n'), 0) << text;
    for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

template <typename Expected, typename Body>
void expect_on_ranks(const Body& body, const std::vector<std::string>& parts) {
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    run_thread_ranks(size, [&](const Communicator& communicator) {
      Accelerator accelerator({.communicator = communicator});
      expect_one_line<Expected>([&] { body(accelerator); }, parts);
    });
  }
}

std::filesystem::path file_of(const TemporaryFolder& folder, const std::string& name, const std::string& bytes) {
  const auto path = folder.path() / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(BadInput, AnEmptyDataset) {
  expect_on_ranks<UsageError>([](Accelerator& accelerator) { accelerator.data_loader(Samples{0}, {.batch_size = 2}); },
                              {"the dataset is empty: check the files"});
}

TEST(BadInput, ABatchThatDropLastLeavesNothingOf) {
  expect_on_ranks<UsageError>(
      [](Accelerator& accelerator) { accelerator.data_loader(Samples{5}, {.batch_size = 6, .drop_last = true}); },
      {"drop_last leaves no batch: 5 samples", "a batch of 6", "use a smaller batch_size, or leave drop_last off"});
}

TEST(BadInput, ADamagedMnistFile) {
  const TemporaryFolder folder;
  const auto images = idx_bytes(8, {3, 28, 28}, std::string(3 * 28 * 28, 'x'));
  const auto labels = file_of(folder, "labels", idx_bytes(8, {3}, std::string(3, '\1')));
  const auto read = [&](const std::string& name, const std::string& bytes) {
    return [path = file_of(folder, name, bytes), labels] { read_mnist_files(path, labels); };
  };
  expect_one_line<DataError>(read("cut", images.substr(0, images.size() - 9)),
                             {"cut: ", "it is truncated, download it again"});
  expect_one_line<DataError>(read("packed", "\x1F\x8B rest"), {"packed: ", "is packed with gzip: unpack it first"});
  expect_one_line<DataError>(read("page", "<html>not found</html>"), {"page: ", "is not an idx file"});
  expect_one_line<DataError>([&] { read_mnist(folder.path() / "nowhere"); }, {"nowhere", "No such file"});
}

TEST(BadInput, ADamagedCifarFile) {
  const TemporaryFolder folder;
  const auto path = file_of(folder, "data_batch_1.bin", std::string(3073 * 2 - 5, '\1'));
  expect_one_line<DataError>(
      [&] { read_cifar10_files({path}); },
      {"data_batch_1.bin: ", "it is truncated, or not the binary version of CIFAR-10: download it again"});
}

TEST(BadInput, ADamagedTokenFile) {
  const TemporaryFolder folder;
  const auto whole = llm_c_bytes(20240520, 1, 4, token_bytes({1, 2, 3, 4}));
  const auto path = file_of(folder, "train.bin", whole.substr(0, whole.size() - 3));
  expect_one_line<DataError>([&] { TokenFile tokens(path); }, {"train.bin: ", "it is truncated, download it again"});
}

TEST(BadInput, AnUnknownBackend) {
  expect_one_line<UsageError>([] { Accelerator accelerator({.communication = {.backend = "gluu"}}); },
                              {"There is no backend 'gluu'. Known: auto, tcp, mpi, "});
}

TEST(BadInput, NcclWithoutAGpu) {
  expect_one_line<UsageError>([] { Accelerator accelerator({.communication = {.backend = "nccl"}}); },
                              {"compiled without NCCL", "Leave it at auto"});
}

}  // namespace
}  // namespace tutti::test::bad_input_test
