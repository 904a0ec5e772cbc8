// Damaged and hostile .pt2 files: each ends in a CheckpointError that names the file and says what is wrong. One rank.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "checkpoint/scratch.h"
#include "exported/pt2_file.h"
#include "tutti/core/error.h"
#include "tutti/exported/exported_module.h"

namespace tutti::test::damaged_test {
namespace {

using Json = nlohmann::json;

class Damaged : public testing::Test {
 protected:
  void refuse_bytes(const std::string& bytes, const std::string& part) {
    const auto path = folder_.path() / "bad.pt2";
    write_content(path, bytes);
    SCOPED_TRACE(part);
    expect_error<CheckpointError>([&] { const ExportedModule model(path); }, {"cannot read", "bad.pt2", part});
  }
  void refuse(const Records& records, const std::string& part) { refuse_bytes(zip_of(records), part); }
  void refuse_program(const std::function<void(Json&)>& change, const std::string& part) {
    Json program = small_program();
    change(program);
    refuse(with_program(program), part);
  }
  void refuse_weights(const std::function<void(Json&)>& change, const std::string& part) {
    Json weights = small_weights();
    change(weights["config"]["layer.weight"]);
    refuse(with_weights(weights), part);
  }
  static Json& graph_of(Json& program) { return program["graph_module"]["graph"]; }
  static Json& node_of(Json& program, int number) { return graph_of(program)["nodes"][number]; }

  TemporaryFolder folder_;
};

TEST_F(Damaged, ArchivesThatAreCutOffOrNone) {
  const std::string whole = zip_of(small_model());
  refuse_bytes("", "has only 0 bytes");
  refuse_bytes(std::string(100, 'x'), "does not end as one");
  refuse_bytes(whole.substr(0, whole.size() - 1), "does not end as one");
  expect_error<CheckpointError>([&] { const ExportedModule model(folder_.path() / "none.pt2"); },
                                {"none.pt2", "opened"});
  expect_error<CheckpointError>([&] { const ExportedModule model(folder_.path()); }, {"not a regular file"});
}

TEST_F(Damaged, NumbersOfTheArchiveThatCannotBe) {
  const std::string whole = zip_of(small_model());
  const auto changed = [&](std::size_t from_end, std::uint32_t number) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + bytes.size() - from_end, &number, sizeof(number));
    return bytes;
  };
  refuse_bytes(changed(6, 0xFFFFFFF0), "outside the file");   // where the directory begins
  refuse_bytes(changed(10, 0xFFFFFFF0), "outside the file");  // its size
  std::string many = whole;
  many[many.size() - 12] = many[many.size() - 11] = '\xFF';
  refuse_bytes(many, "more records than fit");
  const auto entry = whole.find("PK\1\2");
  const auto in_entry = [&](std::size_t offset, char byte) {
    std::string bytes = whole;
    bytes[entry + offset] = byte;
    return bytes;
  };
  refuse_bytes(in_entry(10, 8), "compressed");
  refuse_bytes(in_entry(8, 1), "encrypted");
  refuse_bytes(in_entry(27, 0x70), "two sizes");
  refuse_bytes(in_entry(28, 0), "name");
  refuse_bytes(in_entry(45, 0x70), "outside the file");
}

TEST_F(Damaged, AWeightWithAFlippedBit) {
  std::string bytes = zip_of(small_model());
  const auto place = bytes.find("weight_0") + 8;
  bytes[place + 3] = static_cast<char>(bytes[place + 3] ^ 1);
  refuse_bytes(bytes, "checksum");
}

TEST_F(Damaged, RecordsThatAreMissingPickledOrOfAnotherKind) {
  Records records = small_model();
  records.erase("data/weights/weight_1");
  refuse(records, "no record 'data/weights/weight_1'");
  records = small_model();
  records.erase("models/model.json");
  refuse(records, "no program");
  records["serialized_exported_program.json"] = "{}";
  refuse(records, "too old");
  records = small_model();
  records["data/weights/model.pt"] = "pickle";
  refuse(records, "pickled");
  records = small_model();
  records["byteorder"] = "big";
  refuse(records, "big-endian");
  records = small_model();
  records["models/other.json"] = "{}";
  refuse(records, "'model', 'other'");
}

TEST_F(Damaged, JsonThatIsNoneOrTooDeep) {
  Records records = small_model();
  records["models/model.json"] = "{";
  refuse(records, "not JSON");
  records["models/model.json"] = std::string(100'000, '[');
  refuse(records, "nested deeper");
  records["models/model.json"] = "[]";
  refuse(records, "an object belongs");
}

TEST_F(Damaged, ProgramsOfAnotherSchema) {
  refuse_program([](Json& program) { program["schema_version"]["major"] = 9; }, "9.20");
  refuse_program([](Json& program) { program["schema_version"]["minor"] = 21; }, "use a newer tutti");
  refuse_program([](Json& program) { program["schema_version"]["major"] = 7; }, "with a newer PyTorch");
  refuse_program([](Json& program) { program["schema_version"]["major"] = "x"; }, "an integer belongs");
}

TEST_F(Damaged, GraphsThatContradictThemselves) {
  refuse_program([](Json& program) { node_of(program, 1)["inputs"][0]["arg"]["as_tensor"]["name"] = "unknown"; },
                 "'unknown' is used before it is made");
  refuse_program([](Json& program) { node_of(program, 1)["outputs"][0]["as_tensor"]["name"] = "x"; }, "made twice");
  refuse_program([](Json& program) { node_of(program, 1)["inputs"][0]["arg"] = {{"as_magic", 1}}; }, "'as_magic'");
  refuse_program([](Json& program) { node_of(program, 1)["inputs"][0]["name"] = "color"; }, "no argument 'color'");
  refuse_program([](Json& program) { node_of(program, 1)["inputs"].erase(1); }, "not given 'weight'");
  refuse_program(
      [](Json& program) {
        node_of(program, 1)["inputs"][1]["arg"] = {{"as_string", "w"}};
      },
      "'weight' is no");
  refuse_program(
      [](Json& program) {
        node_of(program, 1)["outputs"].push_back({{"as_tensor", {{"name", "z"}}}});
      },
      "more results");
  refuse_program([](Json& program) { graph_of(program)["inputs"].erase(0); }, "different numbers");
  refuse_program([](Json& program) { graph_of(program)["inputs"][0]["as_tensor"]["name"] = "v"; },
                 "name input 0 differently");
  refuse_program([](Json& program) { graph_of(program)["tensor_values"].erase("x"); }, "input x has no description");
  refuse_program([](Json& program) { program["graph_module"]["module_call_graph"] = Json::array(); },
                 "inputs look like");
  refuse_program(
      [](Json& program) {
        program["graph_module"]["signature"]["input_specs"][3] = {{"custom_obj", {{"arg", {{"name", "x"}}}}}};
      },
      "'custom_obj'");
  refuse_program(
      [](Json& program) {
        program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] =
            R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": []}])";
      },
      "different numbers");
}

TEST_F(Damaged, WeightsThatReachOutsideTheirBytes) {
  const auto meta = [](const char* field, const Json& value) {
    return [field = std::string(field), value](Json& weight) { weight["tensor_meta"][field] = value; };
  };
  const auto number = [](std::int64_t value) { return Json{{"as_int", value}}; };
  refuse_weights(meta("sizes", {number(3), number(3)}), "reaches over 9 elements");
  refuse_weights(meta("strides", {number(4), number(1)}), "reaches over 7 elements");
  refuse_weights(meta("storage_offset", number(1)), "reaches over 7 elements");
  refuse_weights(meta("strides", {number(-3), number(1)}), "no number");
  refuse_weights(meta("strides", {number(0), number(1)}), "share memory");
  refuse_weights(meta("strides", Json::array({number(1)})), "2 sizes and 1 strides");
  refuse_weights(meta("sizes", {number(INT64_MAX), number(INT64_MAX)}), "too large");
  refuse_weights(meta("dtype", 99), "dtype 99");
  refuse_weights(meta("dtype", 8), "reaches over 6 elements");
  refuse_weights(meta("dtype", 4), "wants a gradient");
  refuse_weights(meta("layout", 1), "not dense");
  refuse_weights([](Json& weight) { weight["use_pickle"] = true; }, "pickled");
  refuse_weights([](Json& weight) { weight["path_name"] = "../../models/model.json"; }, "no record's name");
  refuse_weights([](Json& weight) { weight["path_name"] = ".."; }, "no record's name");
}

TEST_F(Damaged, NamesThatCannotBe) {
  for (const std::string name : {"", ".", "a..b", ".a", "a.", "layer.weight.x"}) {
    Json program = small_program(), weights = small_weights();
    auto& inputs = program["graph_module"]["signature"]["input_specs"];
    inputs[2]["buffer"]["buffer_name"] = name;
    Records records = with_program(program);
    refuse(records, "the weights lack '" + name + "'");
    weights["config"][name] = weights["config"]["inner.seen"];
    weights["config"].erase("inner.seen");
    records["data/weights/model_weights_config.json"] = weights.dump();
    refuse(records, "'" + name + "'");
  }
}

}  // namespace
}  // namespace tutti::test::damaged_test
