#include "checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/damaged.h"
#include "checkpoint/state_json.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t format_version = 1;
constexpr const char* format_name = "tutti checkpoint";
constexpr std::string_view opening = "{\"crc32c\": \"";
constexpr std::string_view closing = "\",";
constexpr std::size_t crc_digits = 8;

std::string crc_text(std::uint32_t crc) {
  std::array<char, crc_digits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", crc);
  return digits.data();
}

std::uint32_t parse_crc(std::string_view text) {
  std::uint32_t crc = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text.size() != crc_digits || stopped != text.data() + text.size() || error != std::errc{}) {
    throw DamagedCheckpointError("it is damaged, or not written by tutti: a checksum is missing");
  }
  return crc;
}

const json& field(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) throw CheckpointError(std::string("it has no '") + name + "'");
  return object[name];
}

FileDigest parse_digest(const json& entry) {
  const std::int64_t size = integer_from_json(field(entry, "size"), "size");
  const json& crc = field(entry, "crc32c");
  if (size < 0 || !crc.is_string()) throw CheckpointError("a file's size or checksum is invalid");
  return {.size = static_cast<std::uint64_t>(size), .crc = parse_crc(crc.get_ref<const std::string&>())};
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

bool is_rank_name(const std::string& name) {
  constexpr std::string_view start = "rank_";
  return name.starts_with(start) && name.size() > start.size() &&
         std::all_of(name.begin() + start.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// The JSON of a manifest whose checksum is right.
json checked_body(const std::string& text) {
  const std::size_t covered = opening.size() + crc_digits + closing.size();
  if (text.size() < covered || !text.starts_with(opening) ||
      std::string_view(text).substr(opening.size() + crc_digits, closing.size()) != closing) {
    throw DamagedCheckpointError("it is damaged, or not written by tutti");
  }
  const std::string_view rest = std::string_view(text).substr(covered);
  if (parse_crc(std::string_view(text).substr(opening.size(), crc_digits)) != crc32c(std::as_bytes(std::span(rest)))) {
    throw DamagedCheckpointError("it is damaged: its checksum is wrong");
  }
  return parse_json(text);
}

void check_format(const json& body) {
  if (field(body, "format") != format_name) throw CheckpointError("it has another format");
  const std::int64_t version = integer_from_json(field(body, "version"), "version");
  if (version != format_version) {
    throw CheckpointError("it is of format version " + std::to_string(version) + ", but this version of tutti reads " +
                          std::to_string(format_version) + "; read it with the tutti that wrote it");
  }
}

Manifest manifest_from(const json& body) {
  Manifest manifest{.step = integer_from_json(field(body, "step"), "step")};
  const std::int64_t size = integer_from_json(field(body, "world_size"), "world_size");
  const json& files = field(body, "files");
  if (size < 1 || size > std::numeric_limits<int>::max()) throw CheckpointError("its number of ranks is invalid");
  if (!files.is_object()) throw CheckpointError("its list of files is invalid");
  manifest.world_size = static_cast<int>(size);
  if (body.contains("metric")) manifest.metric = double_from_json(body["metric"], "metric");
  if (body.contains("run")) {
    if (!body["run"].is_string()) throw CheckpointError("its 'run' is not a string");
    manifest.run = body["run"].get<std::string>();
  }
  for (const auto& [name, entry] : files.items()) {
    if (!is_plain_name(name)) throw CheckpointError("it names a file outside its folder");
    manifest.files.emplace(name, parse_digest(entry));
  }
  return manifest;
}

}  // namespace

std::string tensors_name(const std::string& part) {
  return part + ".safetensors";
}
std::string rank_part(int rank) {
  return "rank_" + std::to_string(rank);
}
std::string rank_state_name(int rank) {
  return rank_part(rank) + ".json";
}

void check_part_name(const std::string& name) {
  const bool allowed = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (name.empty() || !allowed || name == "state" || name == "manifest" || is_rank_name(name)) {
    throw UsageError("'" + name +
                     "' cannot be the name of a checkpoint part, as it becomes a file name: use letters, digits, "
                     "'_' and '-', and not 'state', 'manifest' or 'rank_N'");
  }
}

std::string manifest_text(const Manifest& manifest) {
  json body = {{"format", format_name},
               {"version", format_version},
               {"step", manifest.step},
               {"world_size", manifest.world_size},
               {"files", json::object()}};
  if (manifest.metric) body["metric"] = double_to_json(*manifest.metric);
  if (!manifest.run.empty()) body["run"] = manifest.run;
  for (const auto& [name, digest] : manifest.files) {
    body["files"][name] = {{"size", digest.size}, {"crc32c", crc_text(digest.crc)}};
  }
  const std::string rest = body.dump(1).substr(1) + "\n";
  return std::string(opening) + crc_text(crc32c(std::as_bytes(std::span(rest)))) + std::string(closing) + rest;
}

Manifest parse_manifest(const std::string& text) {
  json body;
  try {
    body = checked_body(text);
  } catch (const CheckpointError& error) {
    throw DamagedCheckpointError(error.what());
  }
  check_format(body);
  try {
    return manifest_from(body);
  } catch (const CheckpointError& error) {
    throw DamagedCheckpointError(error.what());
  }
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const auto path = folder / manifest_name;
  std::error_code ignored;
  // read_text() reports any other reason, for example a missing permission.
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    const bool is_there = std::filesystem::exists(folder, ignored);
    throw DamagedCheckpointError(folder.string() + " is not a complete checkpoint: " +
                                 (is_there ? std::string("it has no ") + manifest_name : "it does not exist") +
                                 "; choose another checkpoint");
  }
  const std::string text = read_text(path, max_manifest_size).text;
  const auto explained = [&path](const CheckpointError& error) {
    return "cannot use " + path.string() + ": " + error.what() + ". Choose another checkpoint";
  };
  try {
    return parse_manifest(text);
  } catch (const DamagedCheckpointError& error) {
    throw DamagedCheckpointError(explained(error));
  } catch (const CheckpointError& error) {
    throw CheckpointError(explained(error));
  }
}

}  // namespace tutti::checkpoint
