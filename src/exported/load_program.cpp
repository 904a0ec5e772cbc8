#include "exported/load_program.h"

#include <algorithm>
#include <utility>

#include "exported/archive.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

constexpr std::uint64_t max_text = 1ULL << 30;

std::string list_of_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

std::string why_no_program(const Archive& archive) {
  if (archive.has("serialized_exported_program.json")) {
    return "the file was saved by a PyTorch that is too old: export the model with a newer one";
  }
  if (archive.has("data.pkl")) {
    return "the file was written by torch.save: write a model with torch.export.save(torch.export.export(...)), and "
           "weights with safetensors.torch.save_file, which load_model() reads";
  }
  if (!archive.names_below("data/aotinductor/").empty()) {
    return "the file is a package of AOTInductor, whose compiled code cannot be trained: write the program with "
           "torch.export.save";
  }
  return "the archive has no program of torch.export (models/NAME.json)";
}

// Returns the name of the model to read.
std::string choose_model(const Archive& archive, const std::string& wanted) {
  std::vector<std::string> models;
  for (std::string name : archive.names_below("models/")) {
    if (name.ends_with(".json")) models.push_back(name.substr(0, name.size() - 5));
  }
  if (models.empty()) {
    if (archive.has("constants.pkl")) reject_torch_script();
    throw CheckpointError(why_no_program(archive));
  }
  if (wanted.empty() && models.size() == 1) return models.front();
  for (const std::string& model : models) {
    if (model == wanted) return model;
  }
  throw CheckpointError((wanted.empty() ? "the archive has several models; select one of "
                                        : "the archive has no model '" + wanted + "'; select one of ") +
                        list_of_names(models));
}

void check_format(const Archive& archive) {
  constexpr std::uint64_t max_marker = 64;
  if (archive.has("byteorder") && archive.text("byteorder", max_marker) != "little") {
    throw CheckpointError("the numbers in the file are big-endian");
  }
  if (archive.has("archive_format") && archive.text("archive_format", max_marker) != "pt2") {
    throw CheckpointError("the archive format is not pt2");
  }
}

std::map<std::string, LoadedTensor> read_tensors(const Archive& archive, const std::string& kind,
                                                 const std::string& model) {
  const std::string folder = "data/" + kind + "/";
  if (archive.has(folder + model + ".pt")) {
    throw CheckpointError("the " + kind + " are pickled (" + folder + model +
                          ".pt), and unpickling can run code: export the model with a newer PyTorch");
  }
  const std::string config = folder + model + "_" + kind + "_config.json";
  return load_tensors(archive, folder, parse_weights(archive.text(config, max_text)));
}

// Each tensor that an output overwrites must exist.
void check_mutations(const LoadedProgram& loaded) {
  for (const Output& output : loaded.program.outputs) {
    if (output.kind == Output::Kind::user) continue;
    if (output.kind == Output::Kind::input_mutation) {
      loaded.mutated_input(output.target);
      continue;
    }
    bool found = false;
    for (const Input& input : loaded.program.inputs) {
      found = found || (input.target == output.target &&
                        (input.kind == Input::Kind::parameter || input.kind == Input::Kind::buffer));
    }
    if (!found)
      throw CheckpointError("the program overwrites '" + output.target +
                            "', which is not one of its parameters or buffers");
  }
}

void check_trees(const LoadedProgram& loaded) {
  check_inputs(loaded.inputs);
  std::size_t inputs = 0, outputs = 0;
  for (const Input& input : loaded.program.inputs) {
    if (input.kind == Input::Kind::user || input.kind == Input::Kind::fixed) ++inputs;
  }
  for (const Output& output : loaded.program.outputs) {
    if (output.kind == Output::Kind::user) ++outputs;
  }
  if (loaded.inputs.leaves() != inputs || loaded.outputs.leaves() != outputs) {
    throw CheckpointError(
        "the program's graph and the description of its inputs or outputs have different numbers of values");
  }
  if (loaded.plan->outputs.size() != loaded.program.outputs.size()) {
    throw CheckpointError("an output of the program is a list, not a single value");
  }
}

LoadedProgram load(const std::filesystem::path& path, const std::string& wanted) {
  const Archive archive(path);
  check_format(archive);
  const std::string model = choose_model(archive, wanted);
  LoadedProgram loaded;
  loaded.program = parse_program(archive.text("models/" + model + ".json", max_text));
  loaded.inputs = Tree::parse(loaded.program.in_spec);
  loaded.outputs = Tree::parse(loaded.program.out_spec);
  loaded.plan = compile_program(loaded.program, loaded.report);
  check_trees(loaded);
  check_mutations(loaded);
  loaded.input_names = input_names(loaded.inputs, loaded.program.argument_names);
  loaded.guards.emplace(loaded.program, loaded.input_names);
  loaded.weights = read_tensors(archive, "weights", model);
  loaded.constants = read_tensors(archive, "constants", model);
  for (const Input& input : loaded.program.inputs) {
    if (input.kind != Input::Kind::user && input.kind != Input::Kind::fixed) loaded.tensor_of(input);
  }
  return loaded;
}

}  // namespace

const LoadedTensor& LoadedProgram::tensor_of(const Input& input) const {
  for (const auto* tensors : {&weights, &constants}) {
    const auto found = tensors->find(input.target);
    if (found != tensors->end()) return found->second;
  }
  throw CheckpointError("the weights lack '" + input.target + "', which the program uses");
}

bool LoadedProgram::overwrites(const std::string& buffer) const {
  return std::any_of(program.outputs.begin(), program.outputs.end(), [&](const Output& output) {
    return output.kind == Output::Kind::buffer_mutation && output.target == buffer;
  });
}

std::size_t LoadedProgram::mutated_input(const std::string& name) const {
  std::size_t place = 0;
  for (const Input& input : program.inputs) {
    if (input.kind != Input::Kind::user && input.kind != Input::Kind::fixed) continue;
    if (input.kind == Input::Kind::user && input.value.text == name && !input.value.of_size) return place;
    ++place;
  }
  throw CheckpointError("the program overwrites the input '" + name + "', which does not exist");
}

LoadedProgram load_program(const std::filesystem::path& path, const std::string& model) {
  try {
    return load(path, model);
  } catch (const CheckpointError& error) {
    throw CheckpointError("cannot read " + path.string() + ": " + error.what());
  }
}

}  // namespace tutti::exported
