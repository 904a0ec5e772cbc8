#include "checkpoint/header_events.h"

#include <algorithm>
#include <utility>

namespace tutti::checkpoint {
namespace {

constexpr std::size_t max_ignored_depth = 120;  // about the limit of the reference parser

}  // namespace

bool HeaderEvents::fail(const std::string& why) {
  if (error_.empty()) error_ = why;
  return false;
}

bool HeaderEvents::unexpected(const char* what) {
  const std::string where = place_ == Place::outside    ? "as the header"
                            : place_ == Place::metadata ? "in __metadata__"
                            : name_ == metadata_key     ? "as __metadata__"
                            : place_ == Place::root     ? "as tensor '" + name_ + "'"
                            : field_ == Field::dtype    ? "as the dtype of '" + name_ + "'"
                            : field_ == Field::shape    ? "in the shape of '" + name_ + "'"
                                                        : "in the data_offsets of '" + name_ + "'";
  return fail(std::string(what) + " is not allowed " + where);
}

// Fields that the format does not define may have any value.
bool HeaderEvents::ignorable() const {
  return place_ == Place::ignored || (place_ == Place::tensor && field_ == Field::other);
}

bool HeaderEvents::null() {
  if (ignorable() || (place_ == Place::root && name_ == metadata_key)) return true;
  return unexpected("null");
}
bool HeaderEvents::boolean(bool) {
  return ignorable() || unexpected("true or false");
}
bool HeaderEvents::number_integer(number_integer_t) {
  return ignorable() || unexpected("a negative number");
}
bool HeaderEvents::number_float(number_float_t, const string_t&) {
  return ignorable() || unexpected("a number that is not an integer or is too large");
}
bool HeaderEvents::binary(binary_t&) {
  return unexpected("binary data");
}

bool HeaderEvents::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::shape) {
    entries_.back().shape.push_back(value);
    return true;
  }
  if (place_ == Place::offsets) {
    if (offsets_ == 2) return unexpected("a third number");
    entries_.back().offsets[offsets_++] = value;
    return true;
  }
  return ignorable() || unexpected("a number");
}

bool HeaderEvents::string(string_t& value) {
  if (place_ == Place::metadata) {
    return metadata_.emplace(name_, std::move(value)).second || fail("'" + name_ + "' occurs twice in __metadata__");
  }
  if (place_ == Place::tensor && field_ == Field::dtype) {
    entries_.back().dtype = std::move(value);
    return true;
  }
  return ignorable() || unexpected("a string");
}

bool HeaderEvents::key(string_t& name) {
  if (place_ == Place::root) {
    if (name == metadata_key && std::exchange(has_metadata_, true)) return fail("__metadata__ occurs twice");
    name_ = std::move(name);
  } else if (place_ == Place::metadata) {
    name_ = std::move(name);
  } else if (place_ == Place::tensor) {
    return begin_field(name);
  }
  return true;
}

bool HeaderEvents::begin_field(const std::string& name) {
  const auto first = [&](bool& seen) {
    return !std::exchange(seen, true) || fail("tensor '" + name_ + "' has '" + name + "' twice");
  };
  if (name == "dtype") {
    field_ = Field::dtype;
    return first(has_dtype_);
  }
  if (name == "shape") {
    field_ = Field::shape;
    return first(has_shape_);
  }
  if (name == "data_offsets") {
    field_ = Field::offsets;
    return first(has_offsets_);
  }
  field_ = Field::other;
  return true;
}

bool HeaderEvents::start_object(std::size_t) {
  if (ignorable()) {
    place_ = Place::ignored;
    return ++ignored_depth_ <= max_ignored_depth || fail("it is nested too deeply");
  }
  if (place_ == Place::outside) {
    place_ = Place::root;
    return true;
  }
  if (place_ != Place::root) return unexpected("an object");
  if (name_ == metadata_key) {
    place_ = Place::metadata;
    return true;
  }
  place_ = Place::tensor;
  has_dtype_ = has_shape_ = has_offsets_ = false;
  offsets_ = 0;
  entries_.push_back({.name = name_});
  return true;
}

bool HeaderEvents::end_object() {
  if (place_ == Place::ignored) {
    if (--ignored_depth_ == 0) place_ = Place::tensor;
    return true;
  }
  if (place_ == Place::tensor) return end_tensor();
  place_ = place_ == Place::metadata ? Place::root : Place::outside;
  name_.clear();
  return true;
}

bool HeaderEvents::end_tensor() {
  place_ = Place::root;
  if (has_dtype_ && has_shape_ && offsets_ == 2) return true;
  return fail("tensor '" + name_ + "' lacks its " +
              (!has_dtype_   ? "dtype"
               : !has_shape_ ? "shape"
                             : "two data_offsets"));
}

bool HeaderEvents::start_array(std::size_t) {
  if (ignorable()) {
    place_ = Place::ignored;
    return ++ignored_depth_ <= max_ignored_depth || fail("it is nested too deeply");
  }
  if (place_ == Place::tensor && field_ == Field::shape) {
    place_ = Place::shape;
    return true;
  }
  if (place_ == Place::tensor && field_ == Field::offsets) {
    place_ = Place::offsets;
    return true;
  }
  return unexpected("a list");
}

bool HeaderEvents::end_array() {
  if (place_ == Place::ignored && --ignored_depth_ > 0) return true;
  place_ = Place::tensor;
  return true;
}

bool HeaderEvents::parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
  return fail("its header is not JSON (at byte " + std::to_string(position) + ")");
}

std::string read_events(std::span<const std::byte> header, HeaderEvents& events) {
  // The parser ends at a zero byte and skips a byte order mark, but neither is JSON.
  const auto* begin = reinterpret_cast<const char*>(header.data());
  const auto* end = begin + header.size();
  if (std::find(begin, end, '\0') != end || (begin != end && *begin == '\xEF')) return "its header is not JSON";
  nlohmann::json::sax_parse(begin, end, &events);
  return events.error();
}

}  // namespace tutti::checkpoint
