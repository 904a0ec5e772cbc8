// Valid and damaged .npy files.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/scratch.h"
#include "data/data_files.h"
#include "tutti/core/error.h"
#include "tutti/data/data_loader.h"
#include "tutti/data/readers/npy.h"

namespace tutti::test::npy_reader_test {
namespace {

static_assert(IndexedDataset<NpyDataset>);

std::string dict(const std::string& descr, const std::string& shape, bool fortran = false) {
  std::string text = "{'descr': '" + descr;
  text += "', 'fortran_order': ";
  text += fortran ? "True" : "False";
  text += ", 'shape': " + shape;
  text += ", }";
  // NumPy pads the header to a multiple of 64.
  while ((10 + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  return text;
}

class NpyReader : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    write_content(folder_.path() / name, content);
    return folder_.path() / name;
  }
  at::Tensor read(const std::string& content) const { return read_npy(write("array.npy", content)); }
  void expect_refused(const std::string& content, const std::string& why) const {
    const auto path = write("broken.npy", content);
    expect_error<DataError>([&] { read_npy(path); }, {path.string(), why});
  }
  TemporaryFolder folder_;
};

const std::string shorts = token_bytes({1, 2, 3, 4, 5, 0xFFFF});

TEST_F(NpyReader, EitherOrder) {
  const auto expected = at::tensor({1, 2, 3, 4, 5, -1}, at::kShort);
  EXPECT_TRUE(read(npy_bytes(dict("<i2", "(2, 3)"), shorts)).equal(expected.view({2, 3})));
  EXPECT_TRUE(read(npy_bytes(dict("<i2", "(6,)"), shorts, 2)).equal(expected));
  EXPECT_TRUE(read(npy_bytes(dict("<i2", "(6, )"), shorts, 3)).equal(expected));
  const auto fortran = read(npy_bytes(dict("<i2", "(2, 3)", true), shorts));
  EXPECT_TRUE(fortran.equal(expected.view({3, 2}).t()));
  EXPECT_TRUE(fortran.is_contiguous());
}

TEST_F(NpyReader, EitherByteOrder) {
  const std::string bytes = big_endian_bytes(258, 4) + big_endian_bytes(0xFFFFFFFE, 4);
  EXPECT_TRUE(read(npy_bytes(dict(">i4", "(2,)"), bytes)).equal(at::tensor({258, -2}, at::kInt)));
  const auto scalar = read(npy_bytes(dict(">f8", "()"), big_endian_bytes(0x3FF8000000000000, 8)));
  EXPECT_EQ(scalar.dim(), 0);
  EXPECT_EQ(scalar.item<double>(), 1.5);
  const std::string complex = big_endian_bytes(0x3FC00000, 4) + big_endian_bytes(0x40000000, 4);  // 1.5 + 2i
  EXPECT_TRUE(read(npy_bytes(dict(">c8", "(1,)"), complex)).equal(at::tensor({c10::complex<float>(1.5F, 2.0F)})));
}

TEST_F(NpyReader, EveryDtype) {
  const std::vector<std::pair<std::string, at::ScalarType>> dtypes = {
      {"|b1", at::kBool},   {"|i1", at::kChar}, {"|u1", at::kByte},         {"<i2", at::kShort},
      {"<i4", at::kInt},    {"<i8", at::kLong}, {"<u2", at::kUInt16},       {"<u4", at::kUInt32},
      {"<u8", at::kUInt64}, {"<f2", at::kHalf}, {"<f4", at::kFloat},        {"<f8", at::kDouble},
      {"=f4", at::kFloat},  {"<u1", at::kByte}, {"<c8", at::kComplexFloat}, {"<c16", at::kComplexDouble}};
  for (const auto& [descr, dtype] : dtypes) {
    const auto array = read(npy_bytes(dict(descr, "(3, 1)"), std::string(3 * c10::elementSize(dtype), '\0')));
    EXPECT_EQ(array.scalar_type(), dtype) << descr;
    EXPECT_EQ(array.sizes(), (std::vector<std::int64_t>{3, 1})) << descr;
  }
}

TEST_F(NpyReader, OddHeaders) {
  const auto expected = at::tensor({1, 2, 3, 4, 5, -1}, at::kShort);
  // Python 2, other quotes, another order, no spaces, a header that leaves the data unaligned.
  const std::string odd = "{\"shape\":(6L,),\"fortran_order\":False,\"descr\":\"<i2\"}";
  ASSERT_EQ((10 + odd.size()) % 2, 1U);
  EXPECT_TRUE(read(npy_bytes(odd, shorts)).equal(expected));
  EXPECT_EQ(read(npy_bytes(dict("<f4", "(0, 5)"), "")).sizes(), (std::vector<std::int64_t>{0, 5}));
}

TEST_F(NpyReader, WritingToTheTensorDoesNotChangeTheFile) {
  const auto path = write("array.npy", npy_bytes(dict("<i2", "(6,)"), shorts));
  {
    auto array = read_npy(path);
    array.fill_(7);
    EXPECT_EQ(array.sum().item<std::int64_t>(), 42);
  }
  EXPECT_TRUE(read_npy(path).equal(at::tensor({1, 2, 3, 4, 5, -1}, at::kShort)));
}

TEST_F(NpyReader, TheTensorOutlivesItsReader) {
  at::Tensor row;
  {
    const NpyDataset dataset(write("array.npy", npy_bytes(dict("<i2", "(2, 3)"), shorts)));
    row = dataset.data()[1];
  }
  EXPECT_TRUE(row.equal(at::tensor({4, 5, -1}, at::kShort)));
}

TEST_F(NpyReader, DamagedFilesAreRefused) {
  const std::string whole = npy_bytes(dict("<i2", "(2, 3)"), shorts);
  expect_refused("", "is not a .npy file");
  expect_refused("\x93NUMP", "is not a .npy file");
  expect_refused("PK\3\4: that is a .npz file", "is not a .npy file");
  expect_refused(whole.substr(0, 9), "ends inside its header");
  expect_refused(whole.substr(0, 40), "ends inside its header");
  expect_refused(whole.substr(0, whole.size() - 1),
                 "declares 2 x 3 elements, 12 bytes, but 11 follow: it is truncated");
  expect_refused(whole + "x", "12 bytes, but 13 follow");
  expect_refused(npy_bytes(dict("<i2", "(6,)"), shorts, 4), "version 4.0");
  const auto with_dict = [](const std::string& text) { return npy_bytes(text, shorts); };
  expect_refused(with_dict("{'descr': '<i2', 'shape': (6,), }\n"), "lacks");
  expect_refused(with_dict("{'descr': '<i2', 'descr': '<i2', 'fortran_order': False, 'shape': (6,)}"), "twice");
  expect_refused(with_dict("{'descr': '<i2', 'fortran_order': False, 'shape': (6,), 'more': 1}"), "'more'");
  expect_refused(with_dict("{'descr': '<i2', 'fortran_order': 0, 'shape': (6,)}"), "True or False");
  expect_refused(with_dict("{'descr': '<i2', 'fortran_order': False, 'shape': (6)}"), "(n) is not a tuple");
  expect_refused(with_dict("{'descr': '<i2', 'fortran_order': False, 'shape': (-6,)}"), "a size");
  expect_refused(with_dict("{'descr': '<i2', 'fortran_order': False, 'shape': (6,)} x"), "the end");
  expect_refused(with_dict("[1, 2]"), "'{'");
  expect_refused(with_dict("{'descr': '<i2', 'fortran_order': False, 'shape': (99999999999999999999,)}"), "64 bits");
  expect_refused(with_dict("{'descr': '<i8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}"),
                 "does not fit into 64 bits");
  expect_refused(npy_bytes(dict("|b1", "(3,)"), std::string("\0\1\2", 3)), "element 2 is neither True nor False");
  expect_error<DataError>([&] { read_npy(folder_.path() / "missing.npy"); }, {"missing.npy", "No such file"});
}

TEST_F(NpyReader, DtypesThatLibTorchLacksAreRefusedWithTheReason) {
  const auto refused = [&](const std::string& descr, const std::string& why) {
    expect_refused(npy_bytes(dict(descr, "(1,)"), std::string(16, '\0')), why);
  };
  refused("|O", "unknown");
  refused("|O8", "Python objects");
  refused("<U4", "text");
  refused("|S4", "text");
  refused("<M8[ns]", "dates");
  refused("<f16", "has no counterpart in LibTorch");
  refused("|V16", "has no counterpart in LibTorch");
  refused("|f4", "has no byte order");
  refused("*f4", "has no counterpart in LibTorch");
  expect_refused(npy_bytes("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd"), "record");
}

TEST_F(NpyReader, RowsAreADataset) {
  const auto data = write("data.npy", npy_bytes(dict("<u2", "(3, 2)"), shorts));
  const auto targets = write("targets.npy", npy_bytes(dict("<i8", "(3,)"), token_bytes({7, 8, 9}, 8)));
  NpyDataset both(data, targets);
  EXPECT_EQ(both.size(), 3U);
  const auto batch = both.get_batch(std::vector<std::size_t>{2, 0});
  EXPECT_EQ(batch.data.scalar_type(), at::kUInt16);
  EXPECT_TRUE(batch.data.to(at::kLong).equal(at::tensor({5, 65535, 1, 2}, at::kLong).view({2, 2})));
  EXPECT_TRUE(batch.target.equal(at::tensor({9, 7}, at::kLong)));
  EXPECT_THROW(both.get_batch(std::vector<std::size_t>{3}), UsageError);
  NpyDataset alone(data);
  EXPECT_FALSE(alone.get_batch(std::vector<std::size_t>{1}).target.defined());
  DataLoader loader(alone, {.batch_size = 2}, 1, 2);
  for (const auto& of_rank : loader) EXPECT_EQ(of_rank.data.size(0), 2);

  expect_error<DataError>([&] { NpyDataset(targets, data.parent_path() / "none.npy"); }, {"none.npy"});
  const auto scalar = write("scalar.npy", npy_bytes(dict("<i8", "()"), token_bytes({7}, 8)));
  expect_error<DataError>([&] { NpyDataset dataset(scalar); }, {"scalar.npy", "no rows"});
  expect_error<DataError>([&] { NpyDataset(data, scalar); }, {"scalar.npy", "no rows"});
  const auto two = write("two.npy", npy_bytes(dict("<i8", "(2,)"), token_bytes({7, 8}, 8)));
  expect_error<DataError>([&] { NpyDataset(data, two); }, {"two.npy", "2 rows for the 3"});
}

}  // namespace
}  // namespace tutti::test::npy_reader_test
