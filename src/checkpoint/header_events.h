#pragma once
// The JSON of a safetensors header, understood while it is read: nothing is built for what does not belong there.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace tutti::checkpoint {

/// The name in a header that is no tensor's.
inline constexpr const char* metadata_key = "__metadata__";

/// One tensor's fields as they stand in the file.
struct RawEntry {
  std::string name{};
  std::string dtype{};
  std::vector<std::uint64_t> shape{};
  std::array<std::uint64_t, 2> offsets{};
};

/// Receives the parser's events; a false answer ends the parse with error().
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override;
  bool boolean(bool value) override;
  bool number_integer(number_integer_t value) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t value, const string_t& text) override;
  bool string(string_t& value) override;
  bool binary(binary_t& value) override;
  bool start_object(std::size_t elements) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t elements) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override;

  std::vector<RawEntry>& entries() { return entries_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }
  /// Empty when nothing was wrong.
  const std::string& error() const { return error_; }

 private:
  enum class Place { outside, root, metadata, tensor, shape, offsets, ignored };
  enum class Field { none, dtype, shape, offsets, other };

  bool fail(const std::string& why);
  bool unexpected(const char* what);
  bool ignorable() const;
  bool begin_field(const std::string& name);
  bool end_tensor();

  Place place_ = Place::outside;
  Field field_ = Field::none;
  bool has_metadata_ = false;
  std::string name_;  // the key whose value comes next, in root and metadata
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::size_t offsets_ = 0;
  std::size_t ignored_depth_ = 0;
  std::vector<RawEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::string error_;
};

/// What is wrong with the header, empty when nothing.
std::string read_events(std::span<const std::byte> header, HeaderEvents& events);

}  // namespace tutti::checkpoint
