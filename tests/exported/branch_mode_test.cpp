// The mode of operators in a branch of cond, of which the file names no module. One rank.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "checkpoint/scratch.h"
#include "exported/pt2_file.h"
#include "tutti/exported/exported_module.h"

namespace tutti::test::branch_mode_test {
namespace {

using nlohmann::json;

json named(const std::string& name) {
  return {{"as_tensor", {{"name", name}}}};
}

// A linear layer, and a dropout of all values in both branches of a cond that the module "block" calls.
json program_with_dropout_in_branches() {
  auto program = small_program();
  auto& graph = program["graph_module"]["graph"];
  const auto dropout = json::parse(R"({"target": "torch.ops.aten.dropout.default",
    "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "inner"}}}, {"name": "p", "arg": {"as_float": 1.0}},
               {"name": "train", "arg": {"as_bool": true}}],
    "outputs": [{"as_tensor": {"name": "dropped"}}], "metadata": {"torch_fn": "dropout_1;function.dropout"}})");
  const json branch = {{"as_graph",
                        {{"name", "branch"},
                         {"graph",
                          {{"inputs", {named("inner")}},
                           {"outputs", {named("dropped")}},
                           {"nodes", {dropout}},
                           {"tensor_values", json::object()},
                           {"sym_int_values", json::object()}}}}}};
  const auto input = [](const json& value) { return json{{"name", ""}, {"arg", value}}; };
  graph["nodes"].push_back({{"target", "torch.ops.higher_order.cond"},
                            {"inputs", {input({{"as_bool", true}}), input(branch), input(branch), input(named("y"))}},
                            {"outputs", {named("z")}},
                            {"metadata", {{"nn_module_stack", "k,,Net;k2,block,Block"}}}});
  graph["outputs"][0] = named("z");
  program["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"] = named("z");
  return program;
}

TEST(BranchMode, IsThatOfTheModuleThatCallsCond) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "small.pt2";
  write_content(path, zip_of(with_program(program_with_dropout_in_branches())));
  ExportedModule model(path);
  const auto first = [&] { return model.forward(at::ones({3, 3}))[0][0].item<float>(); };
  EXPECT_EQ(first(), 0);
  model.named_children()["block"]->eval();
  EXPECT_EQ(first(), 16);
  model.named_children()["block"]->train();
  EXPECT_EQ(first(), 0);
  model.eval();
  EXPECT_EQ(first(), 16);
}

}  // namespace
}  // namespace tutti::test::branch_mode_test
