// tutti reads files that Python writes: NumPy's .npy files, and token files as nanoGPT and llm.c write them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/python.h"
#include "checkpoint/scratch.h"
#include "tutti/core/error.h"
#include "tutti/data/readers/npy.h"
#include "tutti/detail/data/token_file.h"

namespace tutti::test::readers_python_test {
namespace {

class DataReaders : public testing::Test {
 protected:
  void SetUp() override {
    const auto python = python_from("TUTTI_READERS_PYTHON");
    if (!python) GTEST_SKIP() << "set TUTTI_READERS_PYTHON=$(tools/readers.sh)";
    python_ = *python;
  }
  void run(const std::string& script) const {
    const auto result = run_python(python_, script, {folder_.path().string()});
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  std::string python_;
  TemporaryFolder folder_;
};

TEST_F(DataReaders, NpyAsNumPyWritesIt) {
  run(R"(
import os, sys, numpy
values = numpy.arange(24).reshape(2, 3, 4)
for dtype in 'i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16'.split():
    for order in '<>':
        array = values.astype(order + dtype)
        for layout in 'CF':
            numpy.save(os.path.join(sys.argv[1], f'{dtype}{"be" if order == ">" else "le"}{layout}.npy'),
                       numpy.asarray(array, order=layout))
numpy.save(os.path.join(sys.argv[1], 'bool.npy'), values % 2 == 1)
numpy.save(os.path.join(sys.argv[1], 'scalar.npy'), numpy.float32(2.5))
numpy.save(os.path.join(sys.argv[1], 'empty.npy'), numpy.zeros((0, 3)))
numpy.save(os.path.join(sys.argv[1], 'text.npy'), numpy.array(['a']))
numpy.save(os.path.join(sys.argv[1], 'object.npy'), numpy.array([None], dtype=object))
numpy.save(os.path.join(sys.argv[1], 'record.npy'), numpy.zeros(2, dtype=[('a', 'f4'), ('b', 'i4')]))
numpy.save(os.path.join(sys.argv[1], 'date.npy'), numpy.array(['2024-01-01'], dtype='M8[D]'))
for version in (1, 2, 3):
    with open(os.path.join(sys.argv[1], f'version{version}.npy'), 'wb') as file:
        numpy.lib.format.write_array(file, values, version=(version, 0))
)");
  const auto expected = at::arange(24, at::kLong).view({2, 3, 4});
  for (const std::string dtype : {"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"}) {
    for (const std::string order : {"le", "be"}) {
      for (const std::string layout : {"C", "F"}) {
        const std::string name = dtype + order + layout + ".npy";
        const auto array = read_npy(folder_.path() / name);
        EXPECT_EQ(c10::elementSize(array.scalar_type()), std::stoul(dtype.substr(1))) << name;
        EXPECT_TRUE(array.is_contiguous()) << name;
        EXPECT_TRUE(array.to(at::kComplexDouble).equal(expected.to(at::kComplexDouble))) << name;
      }
    }
  }
  for (const std::string version : {"1", "2", "3"}) {
    EXPECT_TRUE(read_npy(folder_.path() / ("version" + version + ".npy")).equal(expected));
  }
  EXPECT_TRUE(read_npy(folder_.path() / "bool.npy").equal(expected.remainder(2).to(at::kBool)));
  EXPECT_EQ(read_npy(folder_.path() / "scalar.npy").item<float>(), 2.5F);
  EXPECT_EQ(read_npy(folder_.path() / "empty.npy").sizes(), (std::vector<std::int64_t>{0, 3}));
  for (const std::string name : {"text", "object", "record", "date"}) {
    expect_error<DataError>([&] { read_npy(folder_.path() / (name + ".npy")); }, {name, "dtype"});
  }
}

TEST_F(DataReaders, TokensAsNanoGptAndLlmCWriteThem) {
  run(R"(
import os, sys, numpy
tokens = (numpy.arange(1000) * 97) % 50257
def path(name): return os.path.join(sys.argv[1], name)
# nanoGPT: a memory map of uint16
file = numpy.memmap(path('train.bin'), dtype=numpy.uint16, mode='w+', shape=(1000,))
file[:] = tokens
file.flush()
# llm.c
def write(name, magic, version, dtype):
    header = numpy.zeros(256, dtype=numpy.int32)
    header[:3] = magic, version, len(tokens)
    with open(path(name), 'wb') as out:
        out.write(header.tobytes())
        out.write(tokens.astype(dtype).tobytes())
write('gpt2.bin', 20240520, 1, numpy.uint16)
write('llama3.bin', 20240801, 7, numpy.uint32)
)");
  const auto expected = at::arange(1000, at::kLong).mul(97).remainder(50257);
  for (const std::string name : {"train.bin", "gpt2.bin", "llama3.bin"}) {
    const TokenFile file(folder_.path() / name, {.vocabulary_size = 50257});
    ASSERT_EQ(file.size(), 1000) << name;
    at::Tensor tokens = at::arange(1000, at::kLong);
    file.read(0, {tokens.mutable_data_ptr<std::int64_t>(), 1000});
    EXPECT_TRUE(tokens.equal(expected)) << name;
    EXPECT_NO_THROW(file.check());
  }
}

}  // namespace
}  // namespace tutti::test::readers_python_test
