// Valid and damaged idx, MNIST and CIFAR files.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "checkpoint/scratch.h"
#include "data/data_files.h"
#include "tutti/core/error.h"
#include "tutti/data/data_loader.h"
#include "tutti/data/readers/cifar.h"
#include "tutti/data/readers/mnist.h"

namespace tutti::test::image_readers_test {
namespace {

static_assert(IndexedDataset<LabelledImages>);

class ImageReaders : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    write_content(folder_.path() / name, content);
    return folder_.path() / name;
  }
  /// Expects that read_idx() refuses `content` with the reason `why` and names the file.
  void expect_no_idx(const std::string& content, const std::string& why) const {
    const auto path = write("broken", content);
    expect_error<DataError>([&] { read_idx(path); }, {path.string(), why});
  }
  TemporaryFolder folder_;
};

TEST_F(ImageReaders, IdxOfEveryType) {
  const auto read = [&](int type, const std::vector<std::uint32_t>& sizes, const std::string& data) {
    return read_idx(write("array", idx_bytes(type, sizes, data)));
  };
  EXPECT_TRUE(read(0x08, {2, 2}, "\x01\x02\x03\xFF").equal(at::tensor({1, 2, 3, 255}, at::kByte).view({2, 2})));
  EXPECT_TRUE(read(0x09, {2}, "\x01\xFF").equal(at::tensor({1, -1}, at::kChar)));
  EXPECT_TRUE(read(0x0B, {2}, big_endian_bytes(258, 2) + "\xFF\xFE").equal(at::tensor({258, -2}, at::kShort)));
  EXPECT_TRUE(read(0x0C, {1}, big_endian_bytes(70000, 4)).equal(at::tensor({70000}, at::kInt)));
  EXPECT_TRUE(read(0x0D, {1}, big_endian_bytes(0x3FC00000, 4)).equal(at::tensor({1.5F})));
  EXPECT_TRUE(read(0x0E, {1}, big_endian_bytes(0x3FF8000000000000, 8)).equal(at::tensor({1.5}, at::kDouble)));
  EXPECT_EQ(read(0x08, {0, 3}, "").sizes(), (std::vector<std::int64_t>{0, 3}));
}

TEST_F(ImageReaders, ADamagedIdxFileIsRefused) {
  const std::string whole = idx_bytes(8, {2, 3}, "abcdef");
  expect_no_idx("", "is not an idx file");
  expect_no_idx("PK\3\4 and so on", "is not an idx file");
  expect_no_idx("\x1F\x8B\x08\x08 and so on", "packed with gzip");
  expect_no_idx(whole.substr(0, 7), "ends inside its header");
  expect_no_idx(whole.substr(0, whole.size() - 1), "declares 2 x 3 elements, 6 bytes, but 5 follow: it is truncated");
  expect_no_idx(whole + "g", "6 bytes, but 7 follow");
  expect_no_idx(idx_bytes(7, {1}, "a"), "unknown element type 7");
  expect_no_idx(idx_bytes(8, {}, "a"), "no dimensions");
  expect_no_idx(idx_bytes(8, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, "a"), "does not fit into 64 bits");
  expect_error<DataError>([&] { read_idx(folder_.path() / "missing"); }, {"missing", "cannot open", "No such file"});
  expect_error<DataError>([&] { read_idx(folder_.path()); }, {folder_.path().string(), "not a regular file"});
  const auto pipe = folder_.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRUSR), 0);
  expect_error<DataError>([&] { read_idx(pipe); }, {pipe.string(), "not a regular file"});
}

TEST_F(ImageReaders, Mnist) {
  std::string pixels(2 * 4, '\0');
  pixels[5] = '\xFF';
  write("train-images-idx3-ubyte", idx_bytes(8, {2, 2, 2}, pixels));
  write("train-labels-idx1-ubyte", idx_bytes(8, {2}, "\x07\x09"));
  auto train = read_mnist(folder_.path());
  EXPECT_EQ(train.size(), 2U);
  EXPECT_EQ(train.images().sizes(), (std::vector<std::int64_t>{2, 1, 2, 2}));
  const std::vector<std::size_t> indices = {1, 0, 1};
  const auto batch = train.get_batch(indices);
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 1, 2, 2}));
  EXPECT_EQ(batch.data.scalar_type(), at::kFloat);
  EXPECT_EQ(batch.data[0][0][0][1].item<float>(), 1.0F);
  EXPECT_EQ(batch.data[1].sum().item<float>(), 0.0F);
  EXPECT_TRUE(batch.target.equal(at::tensor({9, 7, 9}, at::kLong)));
  EXPECT_THROW(train.get_batch(std::vector<std::size_t>{2}), UsageError);

  auto scaled = read_mnist(folder_.path(), {.scaling = {.mean = {0.5}, .std = {0.25}}});
  EXPECT_EQ(scaled.get_batch(indices).data[0][0][0][1].item<float>(), 2.0F);
  EXPECT_EQ(scaled.get_batch(indices).data[1][0][0][0].item<float>(), -2.0F);

  write("t10k-images-idx3-ubyte", idx_bytes(8, {1, 2, 2}, "abcd"));
  write("t10k-labels-idx1-ubyte", idx_bytes(8, {1}, "\x01"));
  EXPECT_EQ(read_mnist(folder_.path(), {.train = false}).size(), 1U);
}

TEST_F(ImageReaders, MnistOnRanks) {
  write("train-images-idx3-ubyte", idx_bytes(8, {5, 1, 1}, "abcde"));
  write("train-labels-idx1-ubyte", idx_bytes(8, {5}, std::string("\0\1\2\3\4", 5)));
  DataLoader loader(read_mnist(folder_.path()), {.batch_size = 2, .num_workers = 2}, 1, 2);
  std::vector<std::int64_t> labels;
  for (const auto& batch : loader) {
    for (std::int64_t i = 0; i < batch.target.size(0); ++i) labels.push_back(batch.target[i].item<std::int64_t>());
  }
  EXPECT_EQ(labels, (std::vector<std::int64_t>{1, 3, 0}));
}

TEST_F(ImageReaders, InvalidMnistFilesAreRefused) {
  const auto images = write("images", idx_bytes(8, {2, 1, 1}, "ab"));
  const auto labels = write("labels", idx_bytes(8, {2}, "\x01\x0A"));
  const auto refused = [](const auto& pixels, const auto& targets, std::initializer_list<std::string> parts) {
    expect_error<DataError>([&] { read_mnist_files(pixels, targets); }, parts);
  };
  refused(images, labels, {labels.string(), "sample 1 has label 10, but labels are 0 .. 9"});
  EXPECT_EQ(read_mnist_files(images, labels, {.classes = 11}).size(), 2U);
  refused(images, write("three", idx_bytes(8, {3}, "\1\2\3")), {"three", "3 labels for the 2 images of", "images"});
  refused(labels, images, {labels.string(), "does not hold images"});
  refused(images, images, {images.string(), "does not hold labels"});
  refused(write("none", idx_bytes(8, {0, 1, 1}, "")), write("no_labels", idx_bytes(8, {0}, "")), {"no samples"});
  expect_error<DataError>([&] { read_mnist(folder_.path()); }, {"train-images-idx3-ubyte", "cannot open"});
  expect_error<UsageError>(
      [&] {
        read_mnist_files(images, labels, {.classes = 11, .scaling = {.mean = {1, 2, 3}}});
      },
      {"3 values in mean for 1 channels"});
  expect_error<UsageError>([&] { read_mnist_files(images, labels, {.classes = 11, .scaling = {.std = {0}}}); },
                           {"must be positive"});
}

std::string cifar_record(const std::string& labels, char pixel) {
  return labels + std::string(1024, pixel) + std::string(1024, '\0') + std::string(1024, '\xFF');
}

TEST_F(ImageReaders, Cifar10) {
  for (int i = 1; i <= 5; ++i) {
    const std::string name = "data_batch_" + std::to_string(i) + ".bin";
    write(name, cifar_record(std::string(1, static_cast<char>(i)), '\x33') + cifar_record("\x09", '\0'));
  }
  write("test_batch.bin", cifar_record(std::string(1, '\0'), '\xFF'));
  auto train = read_cifar10(folder_.path());
  EXPECT_EQ(train.size(), 10U);
  EXPECT_TRUE(train.targets().equal(at::tensor({1, 9, 2, 9, 3, 9, 4, 9, 5, 9}, at::kLong)));
  const auto batch = train.get_batch(std::vector<std::size_t>{4});
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{1, 3, 32, 32}));
  EXPECT_FLOAT_EQ(batch.data[0][0][31][31].item<float>(), 0.2F);  // red comes first
  EXPECT_EQ(batch.data[0][1].sum().item<float>(), 0.0F);
  EXPECT_EQ(batch.data[0][2].sum().item<float>(), 1024.0F);
  EXPECT_EQ(read_cifar10(folder_.path(), {.train = false}).size(), 1U);
  EXPECT_EQ(read_cifar10_files({folder_.path() / "data_batch_2.bin"}).size(), 2U);
}

TEST_F(ImageReaders, Cifar100) {
  write("train.bin", cifar_record("\x13\x63", 'a') + cifar_record(std::string("\0\x05", 2), 'b'));
  EXPECT_TRUE(read_cifar100(folder_.path()).targets().equal(at::tensor({99, 5}, at::kLong)));
  EXPECT_TRUE(read_cifar100(folder_.path(), {.coarse = true}).targets().equal(at::tensor({19, 0}, at::kLong)));
  const auto more = write("more.bin", cifar_record("\x01\x02", 'c'));
  EXPECT_TRUE(
      read_cifar100_files({more, folder_.path() / "train.bin"}).targets().equal(at::tensor({2, 99, 5}, at::kLong)));
  EXPECT_TRUE(read_cifar100_files({more}, {.coarse = true}).targets().equal(at::tensor({1}, at::kLong)));
  EXPECT_THROW(read_cifar100_files({}), UsageError);
}

TEST_F(ImageReaders, DamagedCifarFilesAreRefused) {
  const std::string record = cifar_record("\x01", 'a');
  const auto refused = [&](const std::string& content, const std::string& why) {
    const auto path = write("broken.bin", content);
    expect_error<DataError>([&] { read_cifar10_files({path}); }, {path.string(), why});
  };
  refused("", "0 bytes, which is not a multiple of the record size 3073");
  refused(record.substr(1),
          "3072 bytes, which is not a multiple of the record size 3073: it is truncated, or not the binary version of "
          "CIFAR-10");
  refused(record + "x", "3074 bytes");
  refused(record + cifar_record("\x0A", 'a'), "sample 1 has label 10, but labels are 0 .. 9");
  const auto path = write("train.bin", cifar_record("\x01\x64", 'a'));
  expect_error<DataError>([&] { read_cifar100(folder_.path()); }, {path.string(), "label 100, but labels are 0 .. 99"});
  EXPECT_THROW(read_cifar10_files({path}, {.coarse = true}), UsageError);
  EXPECT_THROW(read_cifar10_files({}), UsageError);
  expect_error<DataError>([&] { read_cifar10(folder_.path()); }, {"data_batch_1.bin", "cannot open"});
}

}  // namespace
}  // namespace tutti::test::image_readers_test
