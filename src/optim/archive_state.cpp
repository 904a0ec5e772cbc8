#include "optim/archive_state.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <typeinfo>
#include <utility>
#include <variant>

#include "device/error_text.h"
#include "optim/unique_parameters.h"

namespace tutti {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr const char* none_mark = "%none";
constexpr const char* undefined_mark = "%undefined";
constexpr const char* empty_mark = "%empty";
constexpr const char* list_mark = "%list";
constexpr const char* tuple_mark = "%tuple";
constexpr int deepest = 32;

std::string escaped(const std::string& key) {
  std::string result;
  for (const char letter : key) {
    if (letter == '%') {
      result += "%25";
    } else if (letter == '.') {
      result += "%2E";
    } else {
      result += letter;
    }
  }
  return result;
}

std::string element(std::size_t number) {
  std::string name(1, '%');
  return name.append(std::to_string(number));
}

std::string unescaped(const std::string& name) {
  std::string result;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.compare(i, 3, "%25") == 0 || name.compare(i, 3, "%2E") == 0) {
      result += name[i + 2] == 'E' ? '.' : '%';
      i += 2;
    } else {
      result += name[i];
    }
  }
  return result;
}

StateDict marked(const char* mark) {
  StateDict state;
  state.set(mark, true);
  return state;
}

/// Returns the elements of a tuple or list. Their number is the value of `mark`.
template <typename Elements>
StateDict elements_of(const Elements& elements, const char* mark, const std::string& key);

void keep(const c10::IValue& value, const std::string& key, const std::string& name, StateDict& to) {
  if (value.isNone()) {
    to.set(name, marked(none_mark));
  } else if (value.isTensor()) {
    if (value.toTensor().defined()) {
      to.set(name, value.toTensor().detach());
    } else {
      to.set(name, marked(undefined_mark));
    }
  } else if (value.isBool()) {
    to.set(name, value.toBool());
  } else if (value.isInt()) {
    to.set(name, value.toInt());
  } else if (value.isDouble()) {
    to.set(name, value.toDouble());
  } else if (value.isString()) {
    to.set(name, value.toStringRef());
  } else if (value.isIntList()) {
    to.set(name, value.toIntVector());
  } else if (value.isDoubleList()) {
    to.set(name, value.toDoubleVector());
  } else if (value.isTensorList()) {
    to.set(name, elements_of(value.toTensorVector(), list_mark, key));
  } else if (value.isTuple()) {
    to.set(name, elements_of(value.toTupleRef().elements().vec(), tuple_mark, key));
  } else {
    throw UsageError("the optimizer's save() writes '" + key + "', a " + value.tagKind() +
                     ", which cannot be saved: write tensors, numbers, strings, and lists and tuples of them");
  }
}

template <typename Elements>
StateDict elements_of(const Elements& elements, const char* mark, const std::string& key) {
  StateDict part;
  part.set(mark, static_cast<std::int64_t>(elements.size()));
  for (std::size_t i = 0; i < elements.size(); ++i) keep(c10::IValue(elements[i]), key, element(i), part);
  return part;
}

void copy_archive(InputArchive& archive, StateDict& to) {
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    if (!value.isModule()) {
      keep(value, key, escaped(key), to);
      continue;
    }
    InputArchive nested;
    archive.read(key, nested);
    StateDict part;
    copy_archive(nested, part);
    to.set(escaped(key), part.empty() ? marked(empty_mark) : part);
  }
}

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw CheckpointError("the saved state does not fit this optimizer, and nothing was loaded: '" + name + "' " + why);
}

bool is_value(const StateDict& part) {
  return part.contains(none_mark) || part.contains(undefined_mark) || part.contains(list_mark) ||
         part.contains(tuple_mark);
}

std::size_t length_of(const StateDict& part, const char* mark, const std::string& name) {
  const auto length = part.get<std::int64_t>(mark);
  if (length < 0 || static_cast<std::uint64_t>(length) >= part.values().size()) {
    refuse(name, "is an incomplete list");
  }
  return static_cast<std::size_t>(length);
}

/// The inverse of keep() for the value `name`.
c10::IValue kept(const StateDict& state, const std::string& name, int depth) {
  if (depth > deepest) refuse(name, "is nested too deeply");
  if (state.contains(name)) {
    return std::visit([](const auto& value) { return c10::IValue(value); }, state.values().at(name));
  }
  const StateDict part = state.part(name);
  if (part.contains(none_mark)) return {};
  if (part.contains(undefined_mark)) return at::Tensor();
  if (part.contains(list_mark)) {
    c10::List<at::Tensor> list;
    for (std::size_t i = 0; i < length_of(part, list_mark, name); ++i) {
      list.push_back(kept(part, element(i), depth + 1).toTensor());
    }
    return list;
  }
  if (!part.contains(tuple_mark)) refuse(name, "is not a value");
  std::vector<c10::IValue> elements;
  for (std::size_t i = 0; i < length_of(part, tuple_mark, name); ++i) {
    elements.push_back(kept(part, element(i), depth + 1));
  }
  return c10::ivalue::Tuple::create(std::move(elements));
}

// The names become attributes of a LibTorch module. LibTorch writes them into a program's text, so it accepts only
// these characters.
bool may_be_in_a_name(char letter) {
  const auto code = static_cast<unsigned char>(letter);
  return code >= ' ' && code != 0x7f && letter != '"' && letter != '\'' && letter != '\\';
}

void write_archive(OutputArchive& archive, const StateDict& state, int depth);

void write_part(OutputArchive& archive, const std::string& name, const StateDict& state, int depth) {
  const StateDict part = state.part(name);
  if (is_value(part)) {
    archive.write(unescaped(name), kept(state, name, depth));
    return;
  }
  OutputArchive nested(archive.compilation_unit());
  if (!part.contains(empty_mark)) write_archive(nested, part, depth + 1);
  archive.write(unescaped(name), nested);
}

void write_archive(OutputArchive& archive, const StateDict& state, int depth) {
  if (depth > deepest) throw CheckpointError("the saved optimizer state is nested too deeply");
  std::string last;  // values are sorted by name, so the values of a part are consecutive
  for (const auto& [name, value] : state.values()) {
    const std::size_t dot = name.find('.');
    const std::string first = name.substr(0, dot);
    if (first.empty() || !std::ranges::all_of(first, may_be_in_a_name)) refuse(name, "is not a valid name");
    if (dot != std::string::npos) {
      if (first != last) write_part(archive, first, state, depth);
      last = first;
      continue;
    }
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      archive.write(unescaped(first), *tensor, /*is_buffer=*/true);
    } else {
      archive.write(unescaped(first), kept(state, first, depth));
    }
  }
}

StateDict written_by_save(const torch::optim::Optimizer& optimizer) {
  OutputArchive archive;
  optimizer.save(archive);
  std::stringstream stream;
  archive.save_to(stream);
  InputArchive written;
  written.load_from(stream);
  StateDict state;
  copy_archive(written, state);
  return state;
}

/// Calls load(). Throws CheckpointError for values that state_from_save() cannot return, and the exceptions of load().
void load_through_archive(torch::optim::Optimizer& optimizer, const StateDict& state) {
  OutputArchive archive;
  write_archive(archive, state, 0);
  std::stringstream stream;
  archive.save_to(stream);
  InputArchive written;
  written.load_from(stream);
  const UniqueParametersScope each_once(optimizer);
  optimizer.load(written);
}

}  // namespace

std::string type_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

StateDict state_from_save(const torch::optim::Optimizer& optimizer) {
  try {
    const UniqueParametersScope each_once(optimizer);
    return written_by_save(optimizer);
  } catch (const c10::Error& error) {
    // For example, LibTorch's LBFGS cannot be saved before its history is full.
    throw UsageError(type_of(optimizer) + " cannot be saved in this state: " + error.what_without_backtrace());
  }
}

std::optional<std::string> replace_state(torch::optim::Optimizer& optimizer, const StateDict& state) {
  if (state.empty()) {
    optimizer.state().clear();
    // A load() that requires values need not read an archive without any.
    if (state_from_save(optimizer).empty()) return std::nullopt;
  }
  try {
    load_through_archive(optimizer, state);
  } catch (const std::exception& error) {
    return error_text(error);
  }
  if (!state.empty() || state_from_save(optimizer).empty()) return std::nullopt;
  return "load() of " + type_of(optimizer) +
         " keeps earlier state if the saved state is empty: clear the state first in load()";
}

}  // namespace tutti
