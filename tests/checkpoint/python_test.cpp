// tutti reads files of Python's safetensors, and Python reads files of tutti.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "checkpoint/models.h"
#include "checkpoint/python.h"
#include "checkpoint/safetensors_cases.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/model_file.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::test::python_test {
namespace {

// NumPy has neither bfloat16 nor 8-bit floats; the tests with PyTorch read those.
Safetensors numpy_content() {
  Safetensors content{.tensors = {}, .metadata = {{"from", "tutti"}}};
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte,
                          at::kUInt16, at::kUInt32, at::kUInt64}) {
    content.tensors[c10::toString(type)] = at::arange(6, at::kLong).view({2, 3}).to(type);
  }
  content.tensors["Bool"] = at::arange(6, at::kLong).view({2, 3}).remainder(2).to(at::kBool);
  content.tensors["scalar"] = at::full({}, 2.5, at::kFloat);
  content.tensors["empty"] = at::empty({2, 0}, at::kFloat);
  content.tensors["transposed"] = at::arange(6, at::kFloat).view({2, 3}).t();
  return content;
}

void expect_script(const std::string& python, const std::string& script, const std::vector<std::string>& arguments) {
  const auto result = run_python(python, script, arguments);
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

class Readers : public testing::Test {
 protected:
  void SetUp() override {
    const auto python = python_from("TUTTI_READERS_PYTHON");
    if (!python) GTEST_SKIP() << "set TUTTI_READERS_PYTHON=$(tools/readers.sh)";
    python_ = *python;
  }
  std::string python_;
  TemporaryFolder folder_;
};

class Peers : public testing::Test {
 protected:
  void SetUp() override {
    const auto python = python_from("TUTTI_TORCH_PYTHON");
    if (!python) GTEST_SKIP() << "set TUTTI_TORCH_PYTHON=$(tools/torch_python.sh LIBTORCH)";
    python_ = *python;
  }
  std::string python_;
  TemporaryFolder folder_;
};

TEST_F(Readers, PythonReadsFilesOfTutti) {
  const auto path = folder_.path() / "a.safetensors";
  save_safetensors(path, numpy_content());
  expect_script(python_, R"(
import sys, numpy, safetensors, safetensors.numpy
read = safetensors.numpy.load_file(sys.argv[1])
values = numpy.arange(6).reshape(2, 3)
types = dict(Double='float64', Float='float32', Half='float16', Long='int64', Int='int32', Short='int16', Char='int8',
             Byte='uint8', UInt16='uint16', UInt32='uint32', UInt64='uint64')
for name, dtype in types.items():
    got = read.pop(name)
    assert got.dtype == dtype and (got == values.astype(dtype)).all() and got.shape == (2, 3), name
assert (read.pop('Bool') == (values % 2 == 1)).all()
assert read['scalar'].shape == () and read.pop('scalar') == 2.5
assert read.pop('empty').shape == (2, 0)
got = read.pop('transposed')
assert got.shape == (3, 2) and (got == values.T).all()
assert not read, read
with safetensors.safe_open(sys.argv[1], 'numpy') as file:
    assert file.metadata() == {'from': 'tutti'}
)",
                {path.string()});
}

TEST_F(Readers, TuttiReadsFilesOfPython) {
  const auto path = folder_.path() / "a.safetensors";
  expect_script(python_, R"(
import sys, numpy, safetensors.numpy
values = numpy.arange(6).reshape(2, 3)
types = dict(Double='float64', Float='float32', Half='float16', Long='int64', Int='int32', Short='int16', Char='int8',
             Byte='uint8', UInt16='uint16', UInt32='uint32', UInt64='uint64')
content = {name: values.astype(dtype) for name, dtype in types.items()}
content['Bool'] = values % 2 == 1
content['scalar'] = numpy.array(2.5, 'float32')
content['empty'] = numpy.zeros((2, 0), 'float32')
content['transposed'] = numpy.ascontiguousarray(values.T.astype('float32'))
safetensors.numpy.save_file(content, sys.argv[1], metadata={'from': 'tutti'})
)",
                {path.string()});
  const Safetensors read = load_safetensors(path);
  const Safetensors expected = numpy_content();
  EXPECT_EQ(read.metadata, expected.metadata);
  ASSERT_EQ(read.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) EXPECT_TRUE(same(read.tensors.at(name), tensor)) << name;
}

TEST_F(Readers, TheReferenceAcceptsTheSameFiles) {
  std::string expected;
  int number = 0;
  for (const SafetensorsCase& sample : safetensors_cases()) {
    write_content(folder_.path() / std::to_string(number++), sample.file);
    expected += sample.name + (sample.reference_valid ? ": yes\n" : ": no\n");
  }
  const auto result = run_python(python_, R"(
import os, sys, safetensors
for number in range(len(os.listdir(sys.argv[1]))):
    with open(os.path.join(sys.argv[1], str(number)), 'rb') as file: content = file.read()
    try: safetensors.deserialize(content)
    except Exception: print('no')
    else: print('yes')
)",
                                 {folder_.path().string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  std::istringstream answers(result.output);
  std::string actual;
  for (const SafetensorsCase& sample : safetensors_cases()) {
    std::string answer;
    std::getline(answers, answer);
    actual += sample.name + ": " + answer + "\n";
  }
  EXPECT_EQ(actual, expected);
}

TEST_F(Readers, PythonReadsACheckpointsModel) {
  const auto path = folder_.path() / "checkpoint_3";
  write_checkpoint(path, small_content(3, 0), Communicator());
  expect_script(python_, R"(
import json, os, sys, numpy, safetensors.numpy
model = safetensors.numpy.load_file(os.path.join(sys.argv[1], 'model.safetensors'))
assert sorted(model) == ['bias', 'weight'] and (model['weight'] == numpy.full((3, 4), 3, 'float32')).all()
state = json.load(open(os.path.join(sys.argv[1], 'state.json')))
assert state == {'model': {}, 'optimizer': {'group.0.lr': 0.375}}, state
manifest = json.load(open(os.path.join(sys.argv[1], 'manifest.json')))
assert manifest['step'] == 3 and sorted(manifest['files'])[0] == 'model.safetensors', manifest
)",
                {path.string()});
}

constexpr const char* python_models = R"(
import sys, torch, safetensors.torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.second = torch.nn.Linear(4, 2, bias=False)
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5)
        self.head.weight = self.embedding.weight
def fill(module, start):
    for _, tensor in sorted(module.state_dict().items()):
        tensor.copy_(torch.arange(start, start + tensor.numel()).view(tensor.shape))
def check(module, start):
    for name, tensor in sorted(module.state_dict().items()):
        expected = torch.arange(start, start + tensor.numel()).view(tensor.shape)
        assert (tensor == expected).all(), (name, tensor)
)";

// As fill() above, in alphabetical order of the names. A tied tensor has the same values under each name.
void fill_by_name(const torch::nn::Module& model, std::int64_t start) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : named_tensors_of(model)) {
    tensor.copy_(at::arange(start, start + tensor.numel(), at::kLong).view(tensor.sizes()));
  }
}

void expect_filled(const torch::nn::Module& model, std::int64_t start) {
  for (const auto& [name, tensor] : named_tensors_of(model)) {
    const auto expected = at::arange(start, start + tensor.numel(), at::kLong).view(tensor.sizes());
    EXPECT_TRUE(same(tensor, expected.to(tensor.scalar_type()))) << name;
  }
}

TEST_F(Peers, PyTorchLoadsAModelOfTutti) {
  Net net;
  Tied tied;
  fill_by_name(*net, 5);
  fill_by_name(*tied, 7);
  save_model(*net, folder_.path() / "net");
  save_model(*tied, folder_.path() / "tied");
  CheckpointContent content;
  for (const auto& [name, tensor] : named_tensors_of(*tied)) content.shared["model"].set(name, tensor);
  write_checkpoint(folder_.path() / "checkpoint_0", content, Communicator());
  expect_script(python_, std::string(python_models) + R"(
net = Net()
net.load_state_dict(safetensors.torch.load_file(sys.argv[1] + '/net'))
check(net, 5)
for name in 'tied', 'checkpoint_0/model.safetensors':
    tied = Tied()
    assert safetensors.torch.load_model(tied, sys.argv[1] + '/' + name) == (set(), [])
    check(tied, 7)
with safetensors.safe_open(sys.argv[1] + '/tied', 'pt') as file:
    assert file.metadata() == {'format': 'pt', 'head.weight': 'embedding.weight'} and 'head.weight' not in file.keys()
)",
                {folder_.path().string()});
}

TEST_F(Peers, TuttiLoadsAModelOfPyTorch) {
  expect_script(python_, std::string(python_models) + R"(
net, tied = Net(), Tied()
fill(net, 5)
fill(tied, 7)
safetensors.torch.save_file(net.state_dict(), sys.argv[1] + '/net')
safetensors.torch.save_model(tied, sys.argv[1] + '/tied')
)",
                {folder_.path().string()});
  Net net;
  load_model(*net, folder_.path() / "net");
  expect_filled(*net, 5);
  Tied tied;
  load_model(*tied, folder_.path() / "tied");
  expect_filled(*tied, 7);
  EXPECT_TRUE(tied->head->weight.is_same(tied->embedding->weight));
}

TEST_F(Peers, DtypesThatNumPyLacksAreReadInBothDirections) {
  Safetensors content;
  for (const auto type : {at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2,
                          at::kFloat8_e5m2fnuz, at::kComplexFloat}) {
    content.tensors[c10::toString(type)] = at::arange(4, at::kFloat).to(type);
  }
  save_safetensors(folder_.path() / "a", content);
  expect_script(python_, R"(
import sys, torch, safetensors.torch
read = safetensors.torch.load_file(sys.argv[1] + '/a')
types = dict(BFloat16=torch.bfloat16, Float8_e4m3fn=torch.float8_e4m3fn, Float8_e4m3fnuz=torch.float8_e4m3fnuz,
             Float8_e5m2=torch.float8_e5m2, Float8_e5m2fnuz=torch.float8_e5m2fnuz, ComplexFloat=torch.complex64)
assert read.keys() == types.keys(), read.keys()
for name, dtype in types.items():
    assert read[name].dtype == dtype, name
    assert (read[name].to(torch.complex64) == torch.arange(4)).all(), name
safetensors.torch.save_file(read, sys.argv[1] + '/b')
)",
                {folder_.path().string()});
  const Safetensors back = load_safetensors(folder_.path() / "b");
  ASSERT_EQ(back.tensors.size(), content.tensors.size());
  for (const auto& [name, tensor] : content.tensors) EXPECT_TRUE(same(back.tensors.at(name), tensor)) << name;
}

}  // namespace
}  // namespace tutti::test::python_test
