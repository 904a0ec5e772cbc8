#include "checkpoint/sharded_model.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/damaged.h"
#include "checkpoint/file.h"
#include "checkpoint/replace_file.h"
#include "checkpoint/safetensors_file.h"
#include "core/json_depth.h"
#include "tutti/core/error.h"

namespace tutti::checkpoint {
namespace {

constexpr const char* index_suffix = ".index.json";
constexpr std::uint64_t max_index_size = 256 << 20;
constexpr int max_index_depth = 16;

std::filesystem::path index_of(std::filesystem::path path) {
  return path += index_suffix;
}

std::filesystem::path shard_of(const std::filesystem::path& path, std::size_t number, std::size_t count) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "-%05zu-of-%05zu", number, count);
  auto name = path.stem();
  name += text.data();
  name += path.extension();
  return path.parent_path() / name;
}

bool is_shard_of(const std::filesystem::path& path, const std::filesystem::path& entry) {
  static const std::regex numbers("-[0-9]{5,}-of-[0-9]{5,}");
  const std::string name = entry.filename().string();
  const std::string begin = path.stem().string();
  const std::string end = path.extension().string();
  return name.size() > begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end) &&
         std::regex_match(name.substr(begin.size(), name.size() - begin.size() - end.size()), numbers);
}

// Removes the files of earlier saves to `path`, except `written`.
void remove_others(const std::filesystem::path& path, const std::set<std::filesystem::path>& written) {
  std::error_code ignored;
  for (const auto& entry : entries_of(normalized(path).parent_path())) {
    const bool is_of_model = is_shard_of(path, entry) || entry.filename() == path.filename() ||
                             entry.filename() == index_of(path).filename();
    if (is_of_model && !written.contains(entry.filename()) && std::filesystem::is_regular_file(entry, ignored)) {
      remove_folder(entry);  // throws: load_model() would read an earlier model
    }
  }
}

std::map<std::string, std::string> weight_map(const std::filesystem::path& index) {
  const auto reject = [&index](const std::string& why) -> DamagedCheckpointError {
    return DamagedCheckpointError("cannot read " + index.string() + ": " + why);
  };
  const std::string text = read_text(index, max_index_size).text;
  if (is_json_deeper_than(max_index_depth, text)) throw reject("it is nested too deeply");
  std::map<std::string, std::string> files;
  try {
    files = nlohmann::json::parse(text).at("weight_map").get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception& error) {
    throw reject(error.what());
  }
  for (const auto& [name, file] : files) {
    // A file from somewhere else must not make the program read other folders.
    if (file.empty() || std::filesystem::path(file).filename() != file || file == "." || file == "..") {
      throw reject("the file of tensor '" + name + "' is '" + file + "', which is not a name in the index's folder");
    }
  }
  return files;
}

// Divides the tensors, in the order of their names, into parts of at most `max_bytes` bytes. A larger tensor has a part
// of its own. The part of a tied tensor has its entry of the metadata; other entries are in every part.
std::vector<Safetensors> divide(const Safetensors& content, std::uint64_t max_bytes) {
  std::map<std::string, std::string> of_file;  // the metadata of every part
  std::map<std::string, std::map<std::string, std::string>> of_tensor;
  for (const auto& [key, value] : content.metadata) {
    (content.tensors.contains(value) ? of_tensor[value] : of_file).emplace(key, value);
  }
  std::vector<Safetensors> parts;
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : content.tensors) {
    const std::uint64_t size = tensor.nbytes();
    if (parts.empty() || (bytes > 0 && size > max_bytes - std::min(bytes, max_bytes))) {
      parts.push_back({.tensors = {}, .metadata = of_file});
      bytes = 0;
    }
    bytes += size;
    parts.back().tensors.emplace(name, tensor);
    parts.back().metadata.insert(of_tensor[name].begin(), of_tensor[name].end());
  }
  return parts;
}

}  // namespace

void save_sharded(const std::filesystem::path& path, const Safetensors& content, std::uint64_t max_bytes) {
  check_savable(content);
  const std::vector<Safetensors> parts = divide(content, max_bytes);
  std::set<std::filesystem::path> written;
  if (parts.size() <= 1) {
    save_safetensors(path, content);
    written.insert(path.filename());
  } else {
    nlohmann::json index;
    std::uint64_t total = 0;
    std::deque<FileReplacement> files;  // all are complete before the first one replaces a file
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const auto shard = shard_of(path, part + 1, parts.size());
      files.emplace_back(shard, [&](const std::filesystem::path& file) { write_safetensors(file, parts[part]); });
      written.insert(shard.filename());
      for (const auto& [name, tensor] : parts[part].tensors) {
        index["weight_map"][name] = shard.filename().string();
        total += tensor.nbytes();
      }
    }
    index["metadata"]["total_size"] = total;
    const auto write_index = [&](const std::filesystem::path& file) { write_text(file, index.dump(2) + "\n"); };
    files.emplace_back(index_of(path), write_index);
    written.insert(index_of(path).filename());
    // An earlier index could refer to shards of both saves if the process is killed between the renames. Without an
    // index, load_model() throws.
    if (name_exists(shard_of(path, 1, parts.size()))) files.back().remove_earlier();
    for (FileReplacement& file : files) file.commit();
  }
  remove_others(path, written);
}

std::map<std::string, at::Tensor> load_sharded(const std::filesystem::path& path) {
  const bool is_index = path.filename().string().ends_with(index_suffix);
  if (!is_index && (name_exists(path) || !name_exists(index_of(path)))) return load_safetensors(path).tensors;
  const auto index = is_index ? path : index_of(path);
  const auto files = weight_map(index);
  std::set<std::string> names;
  for (const auto& [name, file] : files) names.insert(file);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& file : names) {
    for (auto& [name, tensor] : load_safetensors(index.parent_path() / file).tensors) {
      if (const auto entry = files.find(name); entry != files.end() && entry->second == file) {
        tensors.emplace(name, std::move(tensor));
      }
    }
  }
  for (const auto& [name, file] : files) {
    if (!tensors.contains(name)) {
      throw DamagedCheckpointError("cannot read " + index.string() + ": " + file + " does not have tensor '" + name +
                                   "'");
    }
  }
  return tensors;
}

}  // namespace tutti::checkpoint
