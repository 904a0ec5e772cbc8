// Ranks: none. Programs of torch.export on the simulated device.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "checkpoint/scratch.h"
#include "exported/pt2_file.h"
#include "support/simulated_device/simulated_device.h"
#include "tutti/exported/exported_module.h"

namespace tutti::test::device_exported_test {
namespace {

const at::Device device(simulated::type, 0);

class DeviceExported : public testing::Test {
 protected:
  ExportedModule load(const Records& records) {
    const auto path = folder_.path() / "small.pt2";
    write_content(path, zip_of(records));
    return ExportedModule(path);
  }

  TemporaryFolder folder_;
};

std::vector<at::Tensor> train(ExportedModule& model, at::Device place) {
  model.to(place);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 1; step <= 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor y = model.forward(at::ones({3, 3}).mul(step).to(place));
    y.square().mean().backward();
    optimizer.step();
  }
  std::vector<at::Tensor> ends;
  for (const at::Tensor& parameter : model.parameters()) ends.push_back(parameter.detach().cpu());
  for (const at::Tensor& buffer : model.buffers()) ends.push_back(buffer.cpu());
  return ends;
}

TEST_F(DeviceExported, TrainsAsOnTheCpu) {
  auto on_cpu = load(small_model());
  auto on_device = load(small_model());
  const auto expected = train(on_cpu, at::kCPU);
  const auto actual = train(on_device, device);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-5, 1e-6)) << i;
}

/// small_program() whose output is a tensor that the program makes on `type`.
nlohmann::json program_with_device(const std::string& type, const nlohmann::json& index) {
  auto program = small_program();
  auto& graph = program["graph_module"]["graph"];
  auto node = nlohmann::json::parse(R"({"target": "torch.ops.aten.full.default",
    "inputs": [{"name": "size", "arg": {"as_ints": [2]}}, {"name": "fill_value", "arg": {"as_float": 2.0}},
               {"name": "dtype", "arg": {"as_scalar_type": 7}}, {"name": "device", "arg": {"as_device": {}}}],
    "outputs": [{"as_tensor": {"name": "made"}}], "metadata": {}})");
  node["inputs"][3]["arg"]["as_device"] = {{"type", type}, {"index", index}};
  graph["nodes"].push_back(node);
  graph["outputs"][0]["as_tensor"]["name"] = "made";
  program["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"]["as_tensor"]["name"] = "made";
  return program;
}

TEST_F(DeviceExported, DevicesInTheProgramBecomeTheModels) {
  auto model = load(with_program(program_with_device("cpu", nullptr)));
  model.to(device);
  EXPECT_EQ(model.forward(at::ones({3, 3}).to(device)).device(), device);
  model.to(at::kCPU);
  EXPECT_TRUE(model.forward(at::ones({3, 3})).is_cpu());
}

/// Replaces the device of all tensors of the export.
nlohmann::json exported_on(nlohmann::json content, const std::string& type) {
  if (content.is_object() && content.contains("type") && content.contains("index") && content["type"] == "cpu") {
    content = {{"type", type}, {"index", 0}};
  }
  if (content.is_structured()) {
    for (auto& part : content) part = exported_on(part, type);
  }
  return content;
}

TEST_F(DeviceExported, AProgramOfAnotherAcceleratorRunsOnThisOne) {
  Records records = small_model();
  records = with_program(exported_on(program_with_device("cpu", nullptr), "cuda"));
  for (auto& [name, text] : records) {
    if (name.find("weights_config") != std::string::npos)
      text = exported_on(nlohmann::json::parse(text), "cuda").dump();
  }
  auto model = load(records);
  EXPECT_TRUE(model.forward(at::ones({3, 3})).is_cpu());
  model.to(device);
  EXPECT_EQ(model.forward(at::ones({3, 3}).to(device)).device(), device);
}

}  // namespace
}  // namespace tutti::test::device_exported_test
