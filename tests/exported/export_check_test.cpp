// `tutti export-check`, started as a command. One process.
#include <gtest/gtest.h>

#include "checkpoint/scratch.h"
#include "exported/pt2_file.h"
#include "launch/tutti_process.h"

namespace tutti::test::export_check_test {
namespace {

Finished check(const Records& records) {
  const TemporaryFolder folder;
  write_content(folder.path() / "m.pt2", zip_of(records));
  return run_tutti({"export-check", (folder.path() / "m.pt2").string()});
}

void expect_text(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
}

TEST(ExportCheck, DescribesAProgram) {
  const auto done = check(small_model());
  EXPECT_EQ(done.exit_code, 0) << done.err;
  expect_text(done.out, {"schema      8.20, PyTorch 2.15.0", "parameters  2, 8 elements, 8 of them trained",
                         "buffers     1, 1 elements", "input       x: Float [s0, 3] on cpu",
                         "size        s0: from 3 to 100", "operator    aten::linear: 1", "It can be trained."});
}

// The program computes the sizes of its results, so tutti need not parse them.
TEST(ExportCheck, ShowsResultSizesThatTuttiDoesNotParse) {
  const std::string size = "TruncToInt(Mul(Float('1.5'), ToFloat(Symbol('s0'))))";
  auto program = small_program();
  auto& values = program["graph_module"]["graph"]["tensor_values"];
  values["y"] = values["x"];
  values["y"]["sizes"][0]["as_expr"]["expr_str"] = size;
  const auto done = check(with_program(program));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  expect_text(done.out, {"output      output: Float [" + size + ", 3] on cpu", "It can be trained."});
}

TEST(ExportCheck, ShowsTheConditionsOnInputs) {
  auto program = small_program();
  program["guards_code"] = {"L['x'].size()[0] % 2 == 0", "L['x'].size()[0] ~ 3"};
  const auto done = check(with_program(program));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  expect_text(done.out, {"condition   L['x'].size()[0] % 2 == 0", "is not checked: L['x'].size()[0] ~ 3"});
}

TEST(ExportCheck, ListsTheProblemsOfAProgram) {
  auto program = small_program();
  auto& nodes = program["graph_module"]["graph"]["nodes"];
  nodes[0]["target"] = "torch.ops.mine.count.default";
  nodes[1]["outputs"][0]["as_tensor"]["name"] = "before";
  nodes.push_back(nlohmann::json::parse(R"({"target": "torch.ops.aten.dropout.default",
    "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "before"}}}, {"name": "p", "arg": {"as_float": 0.5}},
               {"name": "train", "arg": {"as_bool": false}}],
    "outputs": [{"as_tensor": {"name": "y"}}], "metadata": {"nn_module_stack": "k,,Net;k2,drop,Dropout"}})"));
  const auto done = check(with_program(program));
  EXPECT_EQ(done.exit_code, 1) << done.err;
  expect_text(done.out, {"mine::count: 1, missing here", "problem: the operator mine::count is missing",
                         "problem: aten::dropout in drop was exported in eval mode", "It cannot be trained"});
}

TEST(ExportCheck, RejectsDamagedFilesAndWrongArguments) {
  Records records = small_model();
  records["models/model.json"] = "{";
  const auto done = check(records);
  EXPECT_EQ(done.exit_code, 1);
  expect_text(done.err, {"cannot read", "not JSON"});
  EXPECT_EQ(run_tutti({"export-check"}).exit_code, 2);
  EXPECT_EQ(run_tutti({"export-check", "--color", "m.pt2"}).exit_code, 2);
  EXPECT_EQ(run_tutti({"export-check", "--library", "/nowhere.so", "m.pt2"}).exit_code, 2);
  EXPECT_EQ(run_tutti({"export-check", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace tutti::test::export_check_test
