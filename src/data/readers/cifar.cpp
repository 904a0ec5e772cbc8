#include "tutti/data/readers/cifar.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <string>

#include "data/readers/labels.h"
#include "data/readers/mapped_file.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

constexpr std::size_t pixels = 3 * 32 * 32;

/// The label bytes at the start of a record.
struct Labels {
  std::size_t count = 1;
  std::size_t used = 0;
  int classes = 10;
};

struct Part {
  at::Tensor images;
  at::Tensor targets;
};

Part read_file(const std::filesystem::path& path, const Labels& labels) {
  const readers::MappedFile file(path);
  const auto bytes = file.bytes();
  const std::size_t record = labels.count + pixels;
  if (bytes.empty() || bytes.size() % record != 0) {
    throw DataError(path.string() + ": has " + std::to_string(bytes.size()) +
                    " bytes, which is not a multiple of the record size " + std::to_string(record) +
                    ": it is truncated, or not the binary version of CIFAR-" + (labels.count == 1 ? "10" : "100") +
                    ": download it again");
  }
  const auto count = static_cast<std::int64_t>(bytes.size() / record);
  Part part{.images = at::empty({count, 3, 32, 32}, at::kByte), .targets = at::empty({count}, at::kByte)};
  auto* image = part.images.mutable_data_ptr<std::uint8_t>();
  auto* target = part.targets.mutable_data_ptr<std::uint8_t>();
  for (std::size_t begin = 0; begin < bytes.size(); begin += record, image += pixels) {
    *target++ = std::to_integer<std::uint8_t>(bytes[begin + labels.used]);
    std::memcpy(image, bytes.data() + begin + labels.count, pixels);
  }
  readers::check_labels(part.targets, labels.classes, path);
  return part;
}

LabelledImages read_files(const std::vector<std::filesystem::path>& files, const Labels& labels,
                          const PixelScaling& scaling) {
  if (files.empty()) throw UsageError("read_cifar: no files");
  std::vector<at::Tensor> images, targets;
  for (const auto& path : files) {
    const Part part = read_file(path, labels);
    images.push_back(part.images);
    targets.push_back(part.targets);
  }
  return {at::cat(images), at::cat(targets).to(at::kLong), scaling};
}

}  // namespace

LabelledImages read_cifar10(const std::filesystem::path& folder, const CifarOptions& options) {
  std::vector<std::filesystem::path> files;
  if (options.train) {
    for (int i = 1; i <= 5; ++i) files.push_back(folder / ("data_batch_" + std::to_string(i) + ".bin"));
  } else {
    files.push_back(folder / "test_batch.bin");
  }
  return read_cifar10_files(files, options);
}

LabelledImages read_cifar10_files(const std::vector<std::filesystem::path>& files, const CifarOptions& options) {
  if (options.coarse) throw UsageError("CIFAR-10 has no coarse labels");
  return read_files(files, {.count = 1, .used = 0, .classes = 10}, options.scaling);
}

LabelledImages read_cifar100(const std::filesystem::path& folder, const CifarOptions& options) {
  return read_cifar100_files({folder / (options.train ? "train.bin" : "test.bin")}, options);
}

LabelledImages read_cifar100_files(const std::vector<std::filesystem::path>& files, const CifarOptions& options) {
  return read_files(files, {.count = 2, .used = options.coarse ? 0U : 1U, .classes = options.coarse ? 20 : 100},
                    options.scaling);
}

}  // namespace tutti
