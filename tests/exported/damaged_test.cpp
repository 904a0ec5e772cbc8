// A damaged or hostile .pt2 file causes a CheckpointError that names the file and describes the damage. One rank.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/csrc/jit/api/module.h>

#include <cstring>
#include <functional>

#include "checkpoint/scratch.h"
#include "exported/pt2_file.h"
#include "tutti/core/error.h"
#include "tutti/exported/exported_module.h"

namespace tutti::test::damaged_test {
namespace {

using Json = nlohmann::json;

std::string repeated(const std::string& line, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += line;
  return text;
}

class Damaged : public testing::Test {
 protected:
  void reject_bytes(const std::string& bytes, const std::string& part) {
    const auto path = folder_.path() / "bad.pt2";
    write_content(path, bytes);
    SCOPED_TRACE(part);
    expect_error<CheckpointError>([&] { const ExportedModule model(path); }, {"cannot read", "bad.pt2", part});
  }
  void reject(const Records& records, const std::string& part) { reject_bytes(zip_of(records), part); }
  void reject_program(const std::function<void(Json&)>& change, const std::string& part) {
    Json program = small_program();
    change(program);
    reject(with_program(program), part);
  }
  void reject_weights(const std::function<void(Json&)>& change, const std::string& part) {
    Json weights = small_weights();
    change(weights["config"]["layer.weight"]);
    reject(with_weights(weights), part);
  }
  static Json& graph_of(Json& program) { return program["graph_module"]["graph"]; }
  static Json& node_of(Json& program, int number) { return graph_of(program)["nodes"][number]; }

  TemporaryFolder folder_;
};

TEST_F(Damaged, TruncatedAndOtherFilesAreRejected) {
  const std::string whole = zip_of(small_model());
  reject_bytes("", "has only 0 bytes");
  reject_bytes(std::string(100, 'x'), "end record is missing");
  reject_bytes(whole.substr(0, whole.size() - 1), "end record is missing");
  expect_error<CheckpointError>([&] { const ExportedModule model(folder_.path() / "none.pt2"); },
                                {"none.pt2", "opened"});
  expect_error<CheckpointError>([&] { const ExportedModule model(folder_.path()); }, {"not a regular file"});
  const auto pipe = folder_.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRUSR), 0);
  expect_error<CheckpointError>([&] { const ExportedModule model(pipe); }, {"not a regular file"});
}

TEST_F(Damaged, InvalidNumbersOfTheArchiveAreRejected) {
  const std::string whole = zip_of(small_model());
  const auto changed = [&](std::size_t from_end, std::uint32_t number) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + bytes.size() - from_end, &number, sizeof(number));
    return bytes;
  };
  reject_bytes(changed(6, 0xFFFFFFF0), "outside the file");   // the directory's position
  reject_bytes(changed(10, 0xFFFFFFF0), "outside the file");  // its size
  std::string many = whole;
  many[many.size() - 12] = many[many.size() - 11] = '\xFF';
  reject_bytes(many, "number of records does not fit");
  const auto entry = whole.find("PK\1\2");
  const auto in_entry = [&](std::size_t offset, char byte) {
    std::string bytes = whole;
    bytes[entry + offset] = byte;
    return bytes;
  };
  reject_bytes(in_entry(10, 8), "compressed");
  reject_bytes(in_entry(8, 1), "encrypted");
  reject_bytes(in_entry(27, 0x70), "two different sizes");
  reject_bytes(in_entry(28, 0), "name");
  reject_bytes(in_entry(45, 0x70), "outside the file");
}

TEST_F(Damaged, OtherFilesOfPythonAreRejectedByTheirKind) {
  reject({{"data.pkl", "pickled"}}, "written by torch.save");
  reject({{"data/aotinductor/model/code.so", "compiled"}}, "a package of AOTInductor");
  reject({{"version", "1"}}, "has no program of torch.export");
}

TEST_F(Damaged, TorchScriptArchivesAreRejected) {
  const std::string message = "is a TorchScript archive (torch.jit.save): load it with tutti::JitModule";
  for (const bool compressed : {false, true}) {  // torch.jit.save compresses long code
    torch::jit::Module script("__torch__.Net");
    script.define("def forward(self, x):\n" + (compressed ? repeated("    x = torch.tanh(x)\n", 50) : "") +
                  "    return x\n");
    const auto path = folder_.path() / "script.pt";
    script.save(path.string());
    expect_error<CheckpointError>([&] { const ExportedModule model(path); }, {"cannot read", "script.pt", message});
  }
}

TEST_F(Damaged, OverlappingRecordsAreRejected) {
  std::string bytes = zip_of(small_model());
  const auto second = bytes.find("PK\1\2", bytes.find("PK\1\2") + 4);
  bytes.replace(second + 42, 4, 4, '\0');  // the position of the first record
  reject_bytes(bytes, "overlaps the record before it");
}

TEST_F(Damaged, AFlippedBitOfAWeightIsRejected) {
  std::string bytes = zip_of(small_model());
  const auto place = bytes.find("weight_0") + 8;
  bytes[place + 3] = static_cast<char>(bytes[place + 3] ^ 1);
  reject_bytes(bytes, "checksum");
}

TEST_F(Damaged, MissingPickledAndUnknownRecordsAreRejected) {
  Records records = small_model();
  records.erase("data/weights/weight_1");
  reject(records, "no record 'data/weights/weight_1'");
  records = small_model();
  records.erase("models/model.json");
  reject(records, "no program");
  records["serialized_exported_program.json"] = "{}";
  reject(records, "too old");
  records = small_model();
  records["data/weights/model.pt"] = "pickle";
  reject(records, "pickled");
  records = small_model();
  records["byteorder"] = "big";
  reject(records, "big-endian");
  records = small_model();
  records["models/other.json"] = "{}";
  reject(records, "'model', 'other'");
}

TEST_F(Damaged, InvalidAndTooDeepJsonIsRejected) {
  Records records = small_model();
  records["models/model.json"] = "{";
  reject(records, "not JSON");
  records["models/model.json"] = std::string(100'000, '[');
  reject(records, "nested deeper");
  records["models/model.json"] = "[]";
  reject(records, "expected an object");
}

TEST_F(Damaged, OtherSchemaVersionsAreRejected) {
  reject_program([](Json& program) { program["schema_version"]["major"] = 9; }, "9.20");
  reject_program([](Json& program) { program["schema_version"]["minor"] = 21; }, "use a newer tutti");
  reject_program([](Json& program) { program["schema_version"]["major"] = 7; }, "with a newer PyTorch");
  reject_program([](Json& program) { program["schema_version"]["major"] = "x"; }, "expected an integer");
}

TEST_F(Damaged, InconsistentGraphsAreRejected) {
  reject_program([](Json& program) { node_of(program, 1)["inputs"][0]["arg"]["as_tensor"]["name"] = "unknown"; },
                 "'unknown' is used before its definition");
  reject_program([](Json& program) { node_of(program, 1)["outputs"][0]["as_tensor"]["name"] = "x"; }, "defined twice");
  reject_program([](Json& program) { node_of(program, 1)["inputs"][0]["arg"] = {{"as_magic", 1}}; }, "'as_magic'");
  reject_program([](Json& program) { node_of(program, 1)["inputs"][0]["name"] = "color"; }, "no argument 'color'");
  reject_program([](Json& program) { node_of(program, 1)["inputs"].erase(1); }, "needs the argument 'weight'");
  reject_program(
      [](Json& program) {
        node_of(program, 1)["inputs"][1]["arg"] = {{"as_string", "w"}};
      },
      "'weight' is not of type Tensor");
  reject_program(
      [](Json& program) {
        node_of(program, 1)["outputs"].push_back({{"as_tensor", {{"name", "z"}}}});
      },
      "more results");
  reject_program([](Json& program) { graph_of(program)["inputs"].erase(0); }, "different numbers");
  reject_program([](Json& program) { graph_of(program)["inputs"][0]["as_tensor"]["name"] = "v"; },
                 "name input 0 differently");
  reject_program([](Json& program) { graph_of(program)["tensor_values"].erase("x"); }, "input x has no description");
  reject_program([](Json& program) { program["graph_module"]["module_call_graph"] = Json::array(); },
                 "does not describe its inputs");
  reject_program(
      [](Json& program) {
        program["graph_module"]["signature"]["input_specs"][3] = {{"custom_obj", {{"arg", {{"name", "x"}}}}}};
      },
      "'custom_obj'");
  reject_program(
      [](Json& program) {
        program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] =
            R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": []}])";
      },
      "different numbers");
}

// LibTorch does not check the number of a dtype, a layout or a memory format.
TEST_F(Damaged, IntegersInPlaceOfADtypeAreRejected) {
  const auto reject_node = [this](const std::string& node, const std::string& part) {
    reject_program([&](Json& program) { graph_of(program)["nodes"].push_back(Json::parse(node)); }, part);
  };
  const auto made_with = [](const std::string& argument) {
    return R"({"target": "torch.ops.aten.ones_like.default", "metadata": {}, "outputs": [{"as_tensor": {"name": "z"}}],
      "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}}, )" +
           argument + "]}";
  };
  for (const std::string name : {"dtype", "layout", "memory_format"}) {
    const std::string message = "argument '" + name + "' is not of type ";
    reject_node(made_with(R"({"name": ")" + name + R"(", "arg": {"as_int": 1000}})"), message);
    reject_node(made_with(R"({"name": ")" + name + R"(", "arg": {"as_sym_int": {"as_name": "seen"}}})"), message);
  }
  reject_node(R"({"target": "torch.ops.higher_order.wrap_with_autocast", "metadata": {}, "outputs": [],
    "inputs": [{"name": "", "arg": {"as_string": "cpu"}}, {"name": "", "arg": {"as_int": 1000}},
      {"name": "", "arg": {"as_bool": true}}, {"name": "", "arg": {"as_none": true}},
      {"name": "", "arg": {"as_graph": {"name": "inner", "graph": {"inputs": [], "outputs": [], "nodes": [],
        "tensor_values": {}, "sym_int_values": {}}}}}]})",
              "the arguments of autocast are not a device, a dtype and two switches");
}

TEST_F(Damaged, WeightsOutsideTheirRecordAreRejected) {
  const auto meta = [](const char* field, const Json& value) {
    return [field = std::string(field), value](Json& weight) { weight["tensor_meta"][field] = value; };
  };
  const auto number = [](std::int64_t value) { return Json{{"as_int", value}}; };
  reject_weights(meta("sizes", {number(3), number(3)}), "reaches over 9 elements");
  reject_weights(meta("strides", {number(4), number(1)}), "reaches over 7 elements");
  reject_weights(meta("storage_offset", number(1)), "reaches over 7 elements");
  reject_weights(meta("strides", {number(-3), number(1)}), "negative or symbolic");
  reject_weights(meta("strides", {number(0), number(1)}), "share memory");
  reject_weights(meta("strides", Json::array({number(1)})), "2 sizes and 1 strides");
  reject_weights(meta("sizes", {number(INT64_MAX), number(INT64_MAX)}), "too large");
  reject_weights(meta("dtype", 99), "dtype 99");
  reject_weights(meta("dtype", 8), "reaches over 6 elements");
  reject_weights(meta("dtype", 4), "requires a gradient");
  reject_weights(meta("layout", 1), "not dense");
  reject_weights([](Json& weight) { weight["use_pickle"] = true; }, "pickled");
  reject_weights([](Json& weight) { weight["path_name"] = "../../models/model.json"; }, "not a plain file name");
  reject_weights([](Json& weight) { weight["path_name"] = ".."; }, "not a plain file name");
}

TEST_F(Damaged, ABufferMayHaveElementsThatShareMemory) {
  Json program = small_program(), weights = small_weights();
  graph_of(program)["nodes"].erase(0);  // it writes the buffer
  Json& meta = weights["config"]["inner.seen"]["tensor_meta"];
  const auto load = [&](std::int64_t size) {
    meta["sizes"] = Json::array({{{"as_int", size}}});
    meta["strides"] = Json::array({{{"as_int", 0}}});
    Records records = with_program(program);
    records["data/weights/model_weights_config.json"] = weights.dump();
    return records;
  };
  write_content(folder_.path() / "expanded.pt2", zip_of(load(3)));
  const ExportedModule model(folder_.path() / "expanded.pt2");
  const at::Tensor seen = model.named_buffers()["inner.seen"];
  EXPECT_EQ(seen.strides(), c10::IntArrayRef({0}));
  EXPECT_EQ(seen.sum().item<std::int64_t>(), 21);
  reject(load(INT64_MAX / 4), "too large");
}

TEST_F(Damaged, InvalidNamesAreRejected) {
  for (const std::string name : {"", ".", "a..b", ".a", "a.", "layer.weight.x"}) {
    Json program = small_program(), weights = small_weights();
    auto& inputs = program["graph_module"]["signature"]["input_specs"];
    inputs[2]["buffer"]["buffer_name"] = name;
    Records records = with_program(program);
    reject(records, "the weights lack '" + name + "'");
    weights["config"][name] = weights["config"]["inner.seen"];
    weights["config"].erase("inner.seen");
    records["data/weights/model_weights_config.json"] = weights.dump();
    reject(records, "'" + name + "'");
  }
}

}  // namespace
}  // namespace tutti::test::damaged_test
