#pragma once
// A SAX parser of the safetensors header. It allocates nothing for fields that the format does not define.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace tutti::checkpoint {

/// The key of the header that does not name a tensor.
inline constexpr const char* metadata_key = "__metadata__";

/// The fields of a tensor, unchecked.
struct RawEntry {
  std::string name{};
  std::string dtype{};
  std::vector<std::uint64_t> shape{};
  std::array<std::uint64_t, 2> offsets{};
};

/// Receives the parser's events. A handler that returns false ends the parse and sets error().
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
  /// Empty if the header is valid.
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
  std::string name_;  // the key of the next value, in root and metadata
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::size_t offsets_ = 0;
  std::size_t ignored_depth_ = 0;
  std::vector<RawEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::string error_;
};

/// Parses `header` into `events`. Returns the error; empty if there is none.
std::string read_events(std::span<const std::byte> header, HeaderEvents& events);

}  // namespace tutti::checkpoint
