#include "exported/values.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

using Kind = Argument::Kind;

[[noreturn]] void reject(const c10::Argument& wanted) {
  throw CheckpointError("argument '" + wanted.name() + "' is not of type " + wanted.real_type()->annotation_str());
}

// Returns the type without Optional.
c10::TypePtr plain_type(c10::TypePtr type) {
  while (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

bool is_optional(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::OptionalType;
}

// Converts an argument without a schema; nullopt if it is not a constant.
std::optional<c10::IValue> constant_of(const Argument& given) {
  switch (given.kind) {
    case Kind::none:
      return c10::IValue();
    case Kind::integer:
      return given.integer;
    case Kind::number:
      return given.number;
    case Kind::boolean:
      return given.integer != 0;
    case Kind::text:
      return given.text;
    case Kind::complex:
      return c10::complex<double>(given.number, given.imaginary);
    case Kind::scalar_type:
      return static_cast<std::int64_t>(scalar_type_of(given.integer));
    case Kind::layout:
      return layout_of(given.integer);
    case Kind::memory_format:
      return memory_format_of(given.integer);
    case Kind::device:
      return device_of(given.device);
    default:
      return std::nullopt;
  }
}

// Returns the only kind that an argument with the schema's type `type` may have, if that is an enumeration. Arguments
// have such a type as integers, and LibTorch does not check their values.
std::optional<Kind> enumeration_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return Kind::scalar_type;
    case c10::TypeKind::LayoutType:
      return Kind::layout;
    case c10::TypeKind::MemoryFormatType:
      return Kind::memory_format;
    default:
      return std::nullopt;
  }
}

bool is_plain_number(const Argument& given) {
  return given.kind == Kind::integer || given.kind == Kind::number || given.kind == Kind::boolean;
}

double as_double(const Argument& given) {
  return given.kind == Kind::number ? given.number : static_cast<double>(given.integer);
}

struct Elements {
  Conversion conversion;
  bool (*takes)(const Argument&);
};

// Returns how a list of `element` is computed; nullopt if tutti does not support it.
std::optional<Elements> elements_of(const c10::TypePtr& element) {
  const bool optional = is_optional(element);
  const auto is_name = [](const Argument& given) { return given.kind == Kind::name; };
  switch (plain_type(element)->kind()) {
    case c10::TypeKind::TensorType:
      if (!optional) return Elements{Conversion::tensors, is_name};
      return Elements{Conversion::optional_tensors,
                      [](const Argument& given) { return given.kind == Kind::name || given.kind == Kind::none; }};
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return Elements{Conversion::integers,
                      [](const Argument& given) { return given.kind == Kind::name || given.kind == Kind::integer; }};
    case c10::TypeKind::FloatType:
      return Elements{Conversion::floats, [](const Argument& given) {
                        return given.kind == Kind::name || given.kind == Kind::integer || given.kind == Kind::number;
                      }};
    case c10::TypeKind::BoolType:
      return Elements{Conversion::booleans,
                      [](const Argument& given) { return given.kind == Kind::name || given.kind == Kind::boolean; }};
    case c10::TypeKind::NumberType:
      return Elements{Conversion::numbers,
                      [](const Argument& given) { return given.kind == Kind::name || is_plain_number(given); }};
    default:
      return std::nullopt;
  }
}

c10::IValue constant_list(const Argument& given, Conversion conversion, const c10::TypePtr& element) {
  switch (conversion) {
    case Conversion::integers: {
      std::vector<std::int64_t> list;
      for (const Argument& item : given.items) list.push_back(item.integer);
      return list;
    }
    case Conversion::floats: {
      std::vector<double> list;
      for (const Argument& item : given.items) list.push_back(as_double(item));
      return list;
    }
    case Conversion::booleans: {
      c10::List<bool> list;
      for (const Argument& item : given.items) list.push_back(item.integer != 0);
      return list;
    }
    case Conversion::tensors:
      return c10::List<at::Tensor>();
    default: {
      c10::impl::GenericList list(element);
      for (const Argument& item : given.items) list.push_back(*constant_of(item));
      return list;
    }
  }
}

Compiled compile_list(const Argument& given, const c10::Argument& wanted, const c10::TypePtr& element,
                      const FindSlot& find) {
  if (element->kind() == c10::TypeKind::StringType) {
    c10::List<std::string> list;
    for (const Argument& item : given.items) {
      if (item.kind != Kind::text) reject(wanted);
      list.push_back(item.text);
    }
    return {.constant = list};
  }
  const auto elements = elements_of(element);
  if (!elements) reject(wanted);
  DynamicArgument dynamic_argument{.position = 0, .conversion = elements->conversion, .items = {}, .evaluation = {}};
  bool constant = true;
  for (const Argument& item : given.items) {
    if (!elements->takes(item)) reject(wanted);
    constant = constant && item.kind != Kind::name;
  }
  if (constant && dynamic_argument.conversion != Conversion::optional_tensors)
    return {.constant = constant_list(given, dynamic_argument.conversion, element)};
  for (const Argument& item : given.items) dynamic_argument.items.push_back(compile_item(item, find));
  return {.constant = {}, .dynamic_argument = std::move(dynamic_argument)};
}

Compiled compile_name(const Argument& given, const c10::TypePtr& type, const FindSlot& find,
                      const std::function<bool(std::int32_t)>& holds_number) {
  DynamicArgument dynamic_argument;
  dynamic_argument.items.push_back(compile_item(given, find));
  if (holds_number(dynamic_argument.items.front().slot)) {
    if (type->kind() == c10::TypeKind::TensorType) dynamic_argument.conversion = Conversion::wrapped_number;
    if (type->kind() == c10::TypeKind::FloatType) dynamic_argument.conversion = Conversion::floating;
  }
  return {.constant = {}, .dynamic_argument = std::move(dynamic_argument)};
}

Compiled mapped(Conversion conversion, c10::IValue value) {
  DynamicArgument dynamic_argument;
  dynamic_argument.conversion = conversion;
  dynamic_argument.items.push_back({.slot = -1, .last = false, .constant = std::move(value)});
  return {.constant = {}, .dynamic_argument = std::move(dynamic_argument)};
}

// Converts a constant to the `type` of the schema.
c10::IValue typed_constant(const Argument& given, const c10::Argument& wanted, const c10::TypePtr& type) {
  const auto value = constant_of(given);
  if (!value) reject(wanted);
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      if (is_plain_number(given) || given.kind == Kind::complex) return wrapped_number(*value);
      break;
    case c10::TypeKind::FloatType:
      if (given.kind == Kind::number || given.kind == Kind::integer) return as_double(given);
      break;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (value->isInt()) return *value;
      break;
    case c10::TypeKind::BoolType:
      if (given.kind == Kind::boolean) return *value;
      break;
    case c10::TypeKind::NumberType:
      if (is_plain_number(given) || given.kind == Kind::complex) return *value;
      break;
    case c10::TypeKind::StringType:
      if (given.kind == Kind::text) return *value;
      break;
    default:
      break;
  }
  reject(wanted);
}

}  // namespace

c10::ScalarType scalar_type_of(std::int64_t number) {
  static const std::map<std::int64_t, c10::ScalarType> types = {{1, at::kByte},
                                                                {2, at::kChar},
                                                                {3, at::kShort},
                                                                {4, at::kInt},
                                                                {5, at::kLong},
                                                                {6, at::kHalf},
                                                                {7, at::kFloat},
                                                                {8, at::kDouble},
                                                                {9, at::kComplexHalf},
                                                                {10, at::kComplexFloat},
                                                                {11, at::kComplexDouble},
                                                                {12, at::kBool},
                                                                {13, at::kBFloat16},
                                                                {28, at::kUInt16},
                                                                {29, at::kFloat8_e4m3fn},
                                                                {30, at::kFloat8_e5m2},
                                                                {31, at::kFloat8_e4m3fnuz},
                                                                {32, at::kFloat8_e5m2fnuz},
                                                                {33, at::kFloat8_e8m0fnu},
                                                                {34, at::kUInt32},
                                                                {35, at::kUInt64}};
  const auto found = types.find(number);
  if (found == types.end()) throw CheckpointError("unknown dtype " + std::to_string(number));
  return found->second;
}

std::int64_t layout_of(std::int64_t number) {
  constexpr std::int64_t strided = 7;
  if (number != strided) throw CheckpointError("the layout " + std::to_string(number) + " is not dense");
  return static_cast<std::int64_t>(c10::Layout::Strided);
}

std::int64_t memory_format_of(std::int64_t number) {
  constexpr std::array formats = {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast,
                                  c10::MemoryFormat::ChannelsLast3d, c10::MemoryFormat::Preserve};
  if (number < 1 || number > static_cast<std::int64_t>(formats.size())) {
    throw CheckpointError("unknown memory format " + std::to_string(number));
  }
  return static_cast<std::int64_t>(formats.at(static_cast<std::size_t>(number - 1)));
}

c10::Device device_of(const Device& device) {
  if (device.index && (*device.index < 0 || *device.index > 127)) {
    throw CheckpointError("the device '" + device.type + "' has the invalid index " + std::to_string(*device.index));
  }
  try {
    c10::Device known(device.type);
    if (device.index) known.set_index(static_cast<c10::DeviceIndex>(*device.index));
    return known;
  } catch (const c10::Error&) {
    throw CheckpointError("unknown device '" + device.type + "'");
  }
}

at::Tensor wrapped_number(const c10::IValue& number) {
  const auto type = number.isBool()            ? at::kBool
                    : number.isInt()           ? at::kLong
                    : number.isComplexDouble() ? at::kComplexDouble
                                               : at::kDouble;
  at::Tensor tensor = at::scalar_tensor(number.toScalar(), at::TensorOptions(type));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

Operand compile_item(const Argument& given, const FindSlot& find) {
  if (given.kind == Kind::name) return {.slot = find(given), .last = false, .constant = {}};
  auto constant = constant_of(given);
  if (!constant) throw CheckpointError("expected a single value, found a list or a graph");
  return {.slot = -1, .last = false, .constant = std::move(*constant)};
}

Compiled compile_argument(const Argument& given, const c10::Argument& wanted, const FindSlot& find,
                          const std::function<bool(std::int32_t)>& holds_number) {
  const c10::TypePtr type = plain_type(wanted.type());
  if (given.kind == Kind::none) {
    if (is_optional(wanted.type())) return {};
    if (type->kind() == c10::TypeKind::TensorType) return {.constant = at::Tensor()};
    reject(wanted);
  }
  if (given.kind != enumeration_of(plain_type(wanted.real_type())).value_or(given.kind)) reject(wanted);
  if (const auto list = type->cast<c10::ListType>()) {
    const c10::TypePtr element = list->getElementType();
    if (given.kind == Kind::list) return compile_list(given, wanted, element, find);
    // As in Python, one number may replace a list of fixed length.
    if (wanted.N() && (is_plain_number(given) || given.of_size)) {
      const Argument repeated{.kind = Kind::list,
                              .items = std::vector<Argument>(static_cast<std::size_t>(*wanted.N()), given)};
      return compile_list(repeated, wanted, element, find);
    }
    reject(wanted);
  }
  if (given.kind == Kind::name) return compile_name(given, type, find, holds_number);
  if (given.kind == Kind::device && type->kind() == c10::TypeKind::DeviceObjType) {
    return mapped(Conversion::device, device_of(given.device));
  }
  if (given.kind == Kind::scalar_type && type->kind() == c10::TypeKind::IntType) {
    return mapped(Conversion::scalar_type, static_cast<std::int64_t>(scalar_type_of(given.integer)));
  }
  return {.constant = typed_constant(given, wanted, type)};
}

}  // namespace tutti::exported
