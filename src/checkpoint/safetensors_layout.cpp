#include "checkpoint/safetensors_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "checkpoint/header_events.h"
#include "tutti/core/error.h"

namespace tutti::checkpoint {
namespace {

constexpr std::uint64_t max_header_size = 100'000'000;  // the limit of the reference
static_assert(std::endian::native == std::endian::little,
              "the numbers of the file are little-endian and used directly");

[[noreturn]] void reject(const std::string& why) {
  throw CheckpointError("not a valid safetensors file: " + why);
}

std::optional<std::size_t> find_type(const std::string& name) {
  const auto found = std::find_if(element_types.begin(), element_types.end(),
                                  [&](const ElementType& type) { return name == type.name; });
  if (found == element_types.end()) return std::nullopt;
  return static_cast<std::size_t>(found - element_types.begin());
}

// The size of `shape` in bytes. LibTorch computes strides from all sizes except 0, so the strides must also fit.
std::optional<std::uint64_t> bytes_of(const std::vector<std::uint64_t>& shape, std::size_t width) {
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = width;
  bool empty = false;
  for (const std::uint64_t size : shape) {
    if (size == 0) {
      empty = true;
    } else if (size > limit / bytes) {
      return std::nullopt;
    } else {
      bytes *= size;
    }
  }
  return empty ? 0 : bytes;
}

TensorEntry checked(RawEntry&& raw) {
  const std::string named = "tensor '" + raw.name + "'";
  const auto type = find_type(raw.dtype);
  if (!type) reject(named + " has the dtype '" + raw.dtype + "', which is not supported");
  const auto bytes = bytes_of(raw.shape, element_types[*type].width);
  if (!bytes) reject(named + " has a shape that is too large");
  const auto [begin, end] = std::pair(raw.offsets[0], raw.offsets[1]);
  if (end < begin || end - begin != *bytes) {
    reject(named + " takes " + std::to_string(*bytes) + " bytes, but its offsets are " + std::to_string(begin) +
           " and " + std::to_string(end));
  }
  TensorEntry entry{.name = std::move(raw.name), .type = *type, .shape = {}, .begin = begin, .end = end};
  entry.shape.assign(raw.shape.begin(), raw.shape.end());
  return entry;
}

// Every byte of the data belongs to exactly one tensor.
void check_coverage(const std::vector<TensorEntry>& tensors, std::uint64_t data_size) {
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : tensors) {
    if (entry.begin != covered) {
      reject("tensor '" + entry.name + "' begins at byte " + std::to_string(entry.begin) + " of the data, not at " +
             std::to_string(covered) + ", where the previous tensor ends");
    }
    covered = entry.end;
  }
  if (covered != data_size) {
    reject("its tensors take " + std::to_string(covered) + " bytes, but it has " + std::to_string(data_size) +
           " (cut off, or not written to the end?)");
  }
}

void check_names(const std::vector<TensorEntry>& tensors) {
  std::vector<const std::string*> names;
  names.reserve(tensors.size());
  for (const TensorEntry& entry : tensors) names.push_back(&entry.name);
  std::sort(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto twice =
      std::adjacent_find(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a == *b; });
  if (twice != names.end()) reject("tensor '" + **twice + "' occurs twice");
}

std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError("cannot save '" + text + "': names and metadata of a safetensors file must be UTF-8");
  }
}

std::uint64_t bytes_of(const TensorEntry& entry) {
  std::uint64_t bytes = element_types[entry.type].width;
  for (const std::int64_t size : entry.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

std::string entry_text(const TensorEntry& entry) {
  std::string text = "{\"dtype\":\"";
  text.append(element_types[entry.type].name).append("\",\"shape\":").append(nlohmann::json(entry.shape).dump());
  text.append(",\"data_offsets\":[").append(std::to_string(entry.begin)).append(",");
  return text.append(std::to_string(entry.end)).append("]}");
}

}  // namespace

std::uint64_t header_size(std::span<const std::byte, prefix_size> prefix, std::uint64_t file_size) {
  std::uint64_t size = 0;
  std::memcpy(&size, prefix.data(), prefix_size);
  if (size > max_header_size) reject("its header would have " + std::to_string(size) + " bytes");
  if (file_size < prefix_size || size > file_size - prefix_size) {
    reject("it ends within its header of " + std::to_string(size) + " bytes (cut off?)");
  }
  return size;
}

SafetensorsLayout parse_header(std::span<const std::byte> header, std::uint64_t data_size) {
  HeaderEvents events;
  if (const auto error = read_events(header, events); !error.empty()) reject(error);
  SafetensorsLayout layout;
  layout.metadata = std::move(events.metadata());
  layout.tensors.reserve(events.entries().size());
  for (RawEntry& raw : events.entries()) layout.tensors.push_back(checked(std::move(raw)));
  check_names(layout.tensors);
  std::sort(layout.tensors.begin(), layout.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_coverage(layout.tensors, data_size);
  return layout;
}

SafetensorsLayout parse_safetensors(std::span<const std::byte> file) {
  if (file.size() < prefix_size) reject("it has only " + std::to_string(file.size()) + " bytes");
  const std::uint64_t size = header_size(file.first<prefix_size>(), file.size());
  return parse_header(file.subspan(prefix_size, size), file.size() - prefix_size - size);
}

std::string make_header(SafetensorsLayout& layout) {
  std::sort(layout.tensors.begin(), layout.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    const std::size_t width_a = element_types[a.type].width;
    const std::size_t width_b = element_types[b.type].width;
    return width_a != width_b ? width_a > width_b : a.name < b.name;
  });
  std::string json(prefix_size, '\0');  // reserves the field for the size
  json += '{';
  const auto add = [&json](const std::string& name, const std::string& value) {
    if (json.back() != '{') json += ',';
    json.append(name).append(":").append(value);
  };
  if (!layout.metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [word, text] : layout.metadata) add(json_text(word), json_text(text));
    json += '}';
  }
  std::uint64_t offset = 0;
  for (TensorEntry& entry : layout.tensors) {
    if (entry.name == metadata_key) {
      throw UsageError("'__metadata__' cannot be a tensor's name in a safetensors file");
    }
    entry.begin = offset;
    entry.end = offset += bytes_of(entry);
    add(json_text(entry.name), entry_text(entry));
  }
  json += '}';
  json.append((prefix_size - json.size() % prefix_size) % prefix_size, ' ');
  const std::uint64_t size = json.size() - prefix_size;
  if (size > max_header_size) throw UsageError("too many tensors for one safetensors file; divide them among several");
  std::memcpy(json.data(), &size, prefix_size);
  return json;
}

}  // namespace tutti::checkpoint
