#include "data/readers/npy_header.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <optional>

#include "data/readers/byte_order.h"
#include "tutti/core/error.h"

namespace tutti::readers {

namespace {

/// Parses a Python literal token by token.
class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}

  /// Consumes `c` if it is the next character, and returns whether it was.
  bool take(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("'") + c + "'");
  }
  bool take_word(std::string_view word) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string string() {
    const char quote = take('\'') ? '\'' : '"';
    if (quote == '"') expect('"');
    const auto end = text_.find(quote, at_);
    const auto content = text_.substr(at_, end - at_);
    if (end == std::string_view::npos || content.find('\\') != std::string_view::npos) fail("a plain string");
    at_ = end + 1;
    return std::string(content);
  }

  bool boolean() {
    if (take_word("True")) return true;
    if (!take_word("False")) fail("True or False");
    return false;
  }

  std::int64_t size() {
    skip_spaces();
    const auto begin = at_;
    std::int64_t value = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0; ++at_) {
      const int digit = text_[at_] - '0';
      if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10) fail("a size that fits 64 bits");
      value = 10 * value + digit;
    }
    if (begin == at_) fail("a size");
    take_word("L");  // Python 2 wrote it
    return value;
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!take(')')) {
      sizes.push_back(size());
      if (take(',')) continue;
      expect(')');
      if (sizes.size() == 1) fail("a comma: (n) is not a tuple");
      break;
    }
    return sizes;
  }

  void expect_end() {
    skip_spaces();
    if (at_ != text_.size()) fail("the end");
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw DataError("its header cannot be parsed: expected " + expected + " at character " + std::to_string(at_));
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// Parses a dtype such as "<f4".
void read_dtype(const std::string& descr, NpyHeader& header) {
  const auto refuse = [&descr](const std::string& why) { throw DataError("its dtype '" + descr + "' " + why); };
  if (descr.size() < 3) refuse("is unknown");
  const char order = descr[0];
  header.kind = descr[1];
  const std::string digits = descr.substr(2);
  const bool plain = digits.size() <= 2 && std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c); });
  header.width = plain ? std::stoul(digits) : 0;
  if (header.kind == 'O') refuse("holds Python objects: save an array of numbers");
  if (header.kind == 'U' || header.kind == 'S') refuse("holds text: save an array of numbers");
  if (header.kind == 'M' || header.kind == 'm') refuse("holds dates: save an array of numbers");
  const auto is = [&](char kind, std::initializer_list<std::size_t> widths) {
    return header.kind == kind && std::ranges::find(widths, header.width) != widths.end();
  };
  const bool known =
      is('b', {1}) || is('i', {1, 2, 4, 8}) || is('u', {1, 2, 4, 8}) || is('f', {2, 4, 8}) || is('c', {8, 16});
  if (!known || std::string_view("<>|=").find(order) == std::string_view::npos)
    refuse("has no counterpart in LibTorch");
  if (order == '|' && header.width > 1) refuse("has no byte order");
  header.swapped = order == '>' && header.width > 1;
}

}  // namespace

NpyHeader parse_npy_dict(std::string_view dict) {
  NpyHeader header;
  std::optional<std::string> descr;
  bool has_order = false;
  bool has_shape = false;
  Literal literal(dict);
  literal.expect('{');
  while (!literal.take('}')) {
    const std::string key = literal.string();
    literal.expect(':');
    if (key == "descr" && !descr) {
      if (literal.take('[')) throw DataError("its dtype is a record of several fields: save one array for each");
      descr = literal.string();
    } else if (key == "fortran_order" && !has_order) {
      header.fortran_order = literal.boolean();
      has_order = true;
    } else if (key == "shape" && !has_shape) {
      header.shape = literal.tuple();
      has_shape = true;
    } else {
      throw DataError("its header has '" + key + "' " +
                      (key == "descr" || key == "fortran_order" || key == "shape" ? "twice" : "as an unexpected key"));
    }
    if (literal.take(',')) continue;
    literal.expect('}');
    break;
  }
  literal.expect_end();
  if (!descr || !has_order || !has_shape) throw DataError("its header lacks 'descr', 'fortran_order' or 'shape'");
  read_dtype(*descr, header);
  return header;
}

NpyHeader parse_npy(std::span<const std::byte> file) {
  constexpr std::string_view magic = "\x93NUMPY";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(magic)) throw DataError("is not a .npy file: it does not begin with \\x93NUMPY");
  if (file.size() < 10) throw DataError("ends inside its header");
  const int version = std::to_integer<int>(file[6]);
  if (version < 1 || version > 3 || file[7] != std::byte{0}) {
    throw DataError("has version " + std::to_string(version) + "." + std::to_string(std::to_integer<int>(file[7])) +
                    "; supported are 1.0, 2.0 and 3.0");
  }
  const std::size_t begin = version == 1 ? 10 : 12;
  if (file.size() < begin) throw DataError("ends inside its header");
  const std::size_t length =
      version == 1 ? little_endian<std::uint16_t>(file, 8) : little_endian<std::uint32_t>(file, 8);
  if (length > file.size() - begin) throw DataError("ends inside its header");
  NpyHeader header = parse_npy_dict(text.substr(begin, length));
  header.data_offset = begin + length;
  const std::uint64_t expected = bytes_of(header.shape, header.width);
  const std::uint64_t there = file.size() - header.data_offset;
  if (there != expected) {
    throw DataError("its header declares " + describe_shape(header.shape) + " elements, " + std::to_string(expected) +
                    " bytes, but " + std::to_string(there) + " follow" +
                    (there < expected ? ": it is truncated, download it again" : ""));
  }
  return header;
}

}  // namespace tutti::readers
