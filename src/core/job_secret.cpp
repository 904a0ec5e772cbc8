#include "core/job_secret.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/file_descriptor.h"
#include "core/random.h"
#include "core/variables.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

// A recorded handshake allows offline guesses, which could find a short secret.
constexpr std::size_t min_secret_length = 16;
constexpr std::size_t max_secret_length = 4096;

std::string trimmed(const std::string& text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto begin = text.find_first_not_of(blanks);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

UsageError unreadable(const std::string& path, int error) {
  return UsageError(format_variable(secret_file_variable, path) + " cannot be read (" + std::strerror(error) +
                    "): name a file that holds the job's secret on every node");
}

std::string content_of_secret_file(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file.is_open() || ::fstat(file.get(), &about) != 0) throw unreadable(path, errno);
  if (!S_ISREG(about.st_mode)) throw UsageError(format_variable(secret_file_variable, path) + " is not a regular file");
  if ((about.st_mode & S_IRWXO) != 0) {
    throw UsageError(format_variable(secret_file_variable, path) +
                     " may be read or changed by every user of this machine: chmod 600 " + path);
  }
  std::string content(max_secret_length + 1, '\0');
  std::size_t read = 0;
  while (read < content.size()) {
    const auto count = ::read(file.get(), content.data() + read, content.size() - read);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw unreadable(path, errno);
    if (count == 0) break;
    read += static_cast<std::size_t>(count);
  }
  content.resize(read);
  return content;
}

}  // namespace

JobSecret::JobSecret(const std::string& text, std::string source) : text_(trimmed(text)), source_(std::move(source)) {
  if (text_.size() < min_secret_length) {
    throw UsageError("the job's secret in " + source_ + " has " + std::to_string(text_.size()) +
                     " characters, which can be guessed: give it " + std::to_string(min_secret_length) +
                     " or more (head -c 32 /dev/urandom | base64 makes one)");
  }
  if (text.size() > max_secret_length) {
    throw UsageError("the job's secret in " + source_ + " has more than " + std::to_string(max_secret_length) +
                     " characters: it is probably not a file with a secret");
  }
}

JobSecretPtr read_job_secret(const VariableLookup& lookup) {
  const auto text = lookup(secret_variable);
  const auto path = lookup(secret_file_variable);
  if (text && path) {
    throw UsageError(std::string(secret_variable) + " and " + secret_file_variable + " are both set: unset one");
  }
  if (text) return std::make_shared<JobSecret>(*text, secret_variable);
  if (!path) return nullptr;
  return std::make_shared<JobSecret>(content_of_secret_file(*path), *path);
}

bool read_encryption(const VariableLookup& lookup) {
  const std::string value = lookup(encryption_variable).value_or("");
  if (value == "1" || value == "true") return true;
  if (value.empty() || value == "0" || value == "false") return false;
  throw UsageError(format_variable(encryption_variable, value) +
                   ": set it to 1 (encrypt what ranks send to each other " + "over TCP) or 0");
}

JobSecretPtr make_job_secret() {
  std::array<unsigned char, 32> bytes{};
  fill_random(std::as_writable_bytes(std::span(bytes)));
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return std::make_shared<JobSecret>(text, "the launcher");
}

}  // namespace tutti
