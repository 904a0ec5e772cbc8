#include "exported/pt2_file.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "exported/zip_directory.h"

namespace tutti::test {
namespace {

template <typename Number>
std::string bytes_of(std::initializer_list<Number> numbers) {
  std::string bytes(numbers.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), std::data(numbers), bytes.size());
  return bytes;
}

void add(std::string& bytes, std::size_t width, std::uint64_t number) {
  for (std::size_t i = 0; i < width; ++i) bytes += static_cast<char>((number >> (8 * i)) & 0xFF);
}

nlohmann::json meta(int dtype, const std::vector<int>& sizes, bool requires_grad) {
  nlohmann::json json = {{"dtype", dtype},
                         {"sizes", nlohmann::json::array()},
                         {"strides", nlohmann::json::array()},
                         {"storage_offset", {{"as_int", 0}}},
                         {"requires_grad", requires_grad},
                         {"device", {{"type", "cpu"}, {"index", nullptr}}},
                         {"layout", 7}};
  int stride = 1;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    json["sizes"].insert(json["sizes"].begin(), nlohmann::json::object({{"as_int", *size}}));
    json["strides"].insert(json["strides"].begin(), nlohmann::json::object({{"as_int", stride}}));
    stride *= *size;
  }
  return json;
}

nlohmann::json weight(const std::string& record, bool is_parameter, const nlohmann::json& of) {
  return {{"path_name", record}, {"is_param", is_parameter}, {"use_pickle", false}, {"tensor_meta", of}};
}

}  // namespace

std::string zip_of(const Records& records) {
  std::string file, directory;
  for (const auto& [short_name, content] : records) {
    const std::string name = "m/" + short_name;
    const std::uint32_t crc = exported::crc32_of(std::as_bytes(std::span(content)));
    const std::size_t local = file.size();
    std::string common;  // version, flags, method, time, date, checksum, sizes, lengths
    for (const std::size_t number : {20, 0, 0, 0, 0}) add(common, 2, number);
    add(common, 4, crc);
    for (int i = 0; i < 2; ++i) add(common, 4, content.size());
    add(common, 2, name.size());
    add(common, 2, 0);
    file += "PK\3\4" + common + name + content;
    directory += "PK\1\2" + std::string("\24\0", 2) + common + std::string(10, '\0');
    add(directory, 4, local);
    directory += name;
  }
  std::string end = "PK\5\6" + std::string(4, '\0');
  for (int i = 0; i < 2; ++i) add(end, 2, records.size());
  add(end, 4, directory.size());
  add(end, 4, file.size());
  add(end, 2, 0);
  return file + directory + end;
}

nlohmann::json small_program() {
  nlohmann::json program = nlohmann::json::parse(R"({
    "schema_version": {"major": 8, "minor": 20}, "torch_version": "2.15.0", "guards_code": [],
    "range_constraints": {"s0": {"min_val": 3, "max_val": 100}},
    "graph_module": {
      "graph": {
        "inputs": [{"as_tensor": {"name": "w"}}, {"as_tensor": {"name": "b"}}, {"as_tensor": {"name": "seen"}},
                   {"as_tensor": {"name": "x"}}],
        "outputs": [{"as_tensor": {"name": "y"}}],
        "nodes": [
          {"target": "torch.ops.aten.add_.Tensor",
           "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "seen"}}}, {"name": "other", "arg": {"as_int": 1}}],
           "outputs": [{"as_tensor": {"name": "add_"}}], "metadata": {}},
          {"target": "torch.ops.aten.linear.default",
           "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "x"}}},
                      {"name": "weight", "arg": {"as_tensor": {"name": "w"}}},
                      {"name": "bias", "arg": {"as_tensor": {"name": "b"}}}],
           "outputs": [{"as_tensor": {"name": "y"}}], "metadata": {"nn_module_stack": "k,,Net;k2,layer,Linear"}}],
        "tensor_values": {}, "sym_int_values": {}},
      "signature": {
        "input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "layer.weight"}},
                        {"parameter": {"arg": {"name": "b"}, "parameter_name": "layer.bias"}},
                        {"buffer": {"arg": {"name": "seen"}, "buffer_name": "inner.seen", "persistent": true}},
                        {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
        "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}]},
      "module_call_graph": [{"fqn": "", "signature": {"inputs": [], "outputs": [], "forward_arg_names": ["x"],
        "in_spec": "[1, {\"type\": \"builtins.tuple\", \"context\": \"null\", \"children_spec\": [{\"type\": \"builtins.tuple\", \"context\": \"null\", \"children_spec\": [{\"type\": null, \"context\": null, \"children_spec\": []}]}, {\"type\": \"builtins.dict\", \"context\": \"[]\", \"children_spec\": []}]}]",
        "out_spec": "[1, {\"type\": null, \"context\": null, \"children_spec\": []}]"}}]}
  })");
  nlohmann::json x = meta(7, {5, 3}, false);
  x["sizes"][0] = {{"as_expr", {{"expr_str", "Symbol('s0', positive=True, integer=True)"}, {"hint", {{"as_int", 5}}}}}};
  program["graph_module"]["graph"]["tensor_values"]["x"] = x;
  return program;
}

nlohmann::json small_weights() {
  return {{"config",
           {{"layer.weight", weight("weight_0", true, meta(7, {2, 3}, true))},
            {"layer.bias", weight("weight_1", true, meta(7, {2}, true))},
            {"inner.seen", weight("weight_2", false, meta(5, {}, false))}}}};
}

Records small_model() {
  return {{"models/model.json", small_program().dump()},
          {"data/weights/model_weights_config.json", small_weights().dump()},
          {"data/weights/weight_0", bytes_of<float>({1, 2, 3, 4, 5, 6})},
          {"data/weights/weight_1", bytes_of<float>({10, 20})},
          {"data/weights/weight_2", bytes_of<std::int64_t>({7})},
          {"data/constants/model_constants_config.json", R"({"config": {}})"},
          {"byteorder", "little"},
          {"archive_format", "pt2"}};
}

Records with_program(const nlohmann::json& program) {
  Records records = small_model();
  records["models/model.json"] = program.dump();
  return records;
}

Records with_weights(const nlohmann::json& weights) {
  Records records = small_model();
  records["data/weights/model_weights_config.json"] = weights.dump();
  return records;
}

}  // namespace tutti::test
