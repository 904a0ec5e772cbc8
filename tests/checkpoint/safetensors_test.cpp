#include "tutti/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/view_as_complex.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/safetensors_cases.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "tutti/core/error.h"

namespace tutti::test::safetensors_test {
namespace {

Safetensors round_trip(const Safetensors& content) {
  const TemporaryFolder folder;
  save_safetensors(folder.path() / "file", content);
  return load_safetensors(folder.path() / "file");
}

TEST(Safetensors, EveryDtypeIsRestored) {
  Safetensors content;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar,
                          at::kByte, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat, at::kFloat8_e4m3fn,
                          at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    content.tensors[c10::toString(type)] = at::arange(1, 4, at::kFloat).to(type);
  }
  content.tensors["e8m0"] = at::arange(1, 4, at::kByte).view(at::kFloat8_e8m0fnu);
  content.tensors["bool"] = at::arange(3, at::kLong).gt(1);
  const auto read = round_trip(content);
  ASSERT_EQ(read.tensors.size(), content.tensors.size());
  for (const auto& [name, tensor] : content.tensors) EXPECT_TRUE(same(read.tensors.at(name), tensor)) << name;
}

TEST(Safetensors, ShapesStridesAndMetadataAreRestored) {
  const auto base = at::arange(24, at::kFloat).view({2, 3, 4});
  Safetensors content{.tensors = {{"scalar", base[0][1][2]},
                                  {"empty", at::empty({0, 3}, at::kLong)},
                                  {"transposed", base.transpose(0, 2)},
                                  {"strided", base.select(2, 1)},
                                  {"expanded", at::ones({1, 3}).expand({4, 3})},
                                  {"conjugated", at::view_as_complex(base.view({12, 2})).conj()},
                                  {"trained", at::ones({2}).requires_grad_()},
                                  {"", at::ones({1})}},
                      .metadata = {{"key", "value"}, {"", "\n\"ü\""}}};
  const auto read = round_trip(content);
  EXPECT_EQ(read.metadata, content.metadata);
  ASSERT_EQ(read.tensors.size(), content.tensors.size());
  for (const auto& [name, tensor] : content.tensors) {
    EXPECT_TRUE(same(read.tensors.at(name), tensor.resolve_conj())) << name;
  }
  EXPECT_FALSE(read.tensors.at("trained").requires_grad());
}

TEST(Safetensors, ReadsMisalignedDataIntoAlignedTensors) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "file";
  write_content(path, file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                                  "b":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})",
                              17));
  const auto b = load_safetensors(path).tensors.at("b");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.const_data_ptr()) % alignof(double), 0U);
  EXPECT_TRUE(same(b.view(at::kByte), at::ones({16}, at::kByte)));
}

TEST(Safetensors, EveryByteExceptZeroIsTrue) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "file";
  std::string file = file_of(R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", 3);
  file[file.size() - 1] = '\x80';
  file[file.size() - 2] = '\0';
  write_content(path, file);
  EXPECT_TRUE(
      same(load_safetensors(path).tensors.at("a").view(at::kByte), at::arange(3, at::kByte).ne(1).view(at::kByte)));
}

TEST(Safetensors, RefusesATruncatedFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "file";
  save_safetensors(path, {.tensors = {{"w", at::ones({3, 5})}}});
  const std::string whole = content_of(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_content(path, whole.substr(0, size));
    expect_error<CheckpointError>([&] { load_safetensors(path); }, {path.string()});
  }
  write_content(path, whole + "x");
  expect_error<CheckpointError>([&] { load_safetensors(path); }, {path.string()});
}

TEST(Safetensors, RefusesPathsThatAreNotRegularFiles) {
  const TemporaryFolder folder;
  expect_error<CheckpointError>([&] { load_safetensors(folder.path() / "none"); }, {"none", "No such file"});
  expect_error<CheckpointError>([&] { load_safetensors(folder.path()); }, {folder.path().string()});
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error<CheckpointError>([&] { load_safetensors(pipe); }, {"pipe", "not a regular file"});
  expect_error<CheckpointError>([&] { load_safetensors("/dev/zero"); }, {"/dev/zero", "not a regular file"});
}

TEST(Safetensors, NamesTheReasonOfADiskError) {
  const Safetensors content{.tensors = {{"w", at::ones({3})}}};
  const TemporaryFolder folder;
  expect_error<CheckpointError>([&] { save_safetensors(folder.path() / "none" / "file", content); },
                                {"none/.file.", "No such file or directory"});
  if (std::filesystem::exists("/dev/full")) {
    expect_error<CheckpointError>([&] { save_safetensors("/dev/full", content); }, {"/dev/full", "No space left"});
  }
}

TEST(Safetensors, RefusesTensorsThatTheFormatLacks) {
  const TemporaryFolder folder;
  const auto refuses = [&](const std::string& name, const at::Tensor& tensor, const std::string& why) {
    expect_error<UsageError>(
        [&] {
          save_safetensors(folder.path() / "file", {.tensors = {{name, tensor}}});
        },
        {name, why});
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "file"));
  };
  refuses("w", at::ones({2}, at::kComplexDouble), "ComplexDouble");
  refuses("w", at::Tensor(), "undefined");
  refuses("w", at::ones({2}, at::kMeta), "meta device");
  refuses("w", at::ones({2, 2}).to_sparse(), "dense");
  refuses("__metadata__", at::ones({2}), "name");
  refuses("\xff", at::ones({2}), "UTF-8");
}

TEST(Safetensors, AFileWithoutANameCannotBeReplaced) {
  const int file = ::memfd_create("file", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  expect_error<CheckpointError>(
      [&] {
        save_safetensors(path, {.tensors = {{"w", at::ones({2})}}});
      },
      {"cannot create /proc/self/fd/"});
  ::close(file);
}

TEST(Safetensors, AllocatesNoMoreThanTheSizeOfTheFile) {
  // The header declares 2^50 bytes; the file has none.
  const TemporaryFolder folder;
  const auto path = folder.path() / "file";
  write_content(path,
                file_of(R"({"w":{"dtype":"U8","shape":[1125899906842624],"data_offsets":[0,1125899906842624]}})", 8));
  expect_error<CheckpointError>([&] { load_safetensors(path); }, {path.string(), "cut off"});
}

}  // namespace
}  // namespace tutti::test::safetensors_test
