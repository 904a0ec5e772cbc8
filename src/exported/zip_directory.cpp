#include "exported/zip_directory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

constexpr std::uint64_t end_size = 22, end64_size = 56, locator_size = 20, entry_size = 46, local_size = 30;
constexpr std::uint64_t max_directory = 256ULL << 20;
constexpr std::size_t max_name = 4096;
constexpr std::uint64_t in_extra32 = 0xFFFFFFFF;  // the number is in the extra field

[[noreturn]] void reject(const std::string& why) {
  throw CheckpointError("not an intact archive of torch.export.save: " + why);
}

// The caller has checked that `bytes` is long enough.
template <typename Number>
Number number_at(std::span<const std::byte> bytes, std::size_t offset) {
  Number number{};
  std::memcpy(&number, bytes.subspan(offset, sizeof(Number)).data(), sizeof(Number));
  return number;
}

bool has_signature(std::span<const std::byte> bytes, std::uint32_t signature) {
  return bytes.size() >= 4 && number_at<std::uint32_t>(bytes, 0) == signature;
}

struct Directory {
  std::uint64_t offset = 0, size = 0, count = 0;
};

// The end record at the end of the file has the directory's position. If a number needs 64 bits, a larger end record
// before it has the position.
Directory find_directory(std::uint64_t file_size, const ReadAt& read) {
  if (file_size < end_size) reject("the file has only " + std::to_string(file_size) + " bytes");
  std::array<std::byte, end_size> end{};
  read(file_size - end_size, end);
  if (!has_signature(end, 0x06054b50)) reject("the end record is missing (is the file truncated?)");
  Directory directory{.offset = number_at<std::uint32_t>(end, 16),
                      .size = number_at<std::uint32_t>(end, 12),
                      .count = number_at<std::uint16_t>(end, 10)};
  if (number_at<std::uint16_t>(end, 20) != 0) reject("the archive has a comment");
  const std::uint64_t behind = end_size + locator_size + end64_size;
  if (file_size >= behind) {
    std::array<std::byte, locator_size> locator{};
    read(file_size - end_size - locator_size, locator);
    if (has_signature(locator, 0x07064b50)) {
      const auto place = number_at<std::uint64_t>(locator, 8);
      if (place > file_size - behind) reject("the 64-bit end record is outside the file");
      std::array<std::byte, end64_size> end64{};
      read(place, end64);
      if (!has_signature(end64, 0x06064b50)) reject("the 64-bit end record is damaged");
      directory = {.offset = number_at<std::uint64_t>(end64, 48),
                   .size = number_at<std::uint64_t>(end64, 40),
                   .count = number_at<std::uint64_t>(end64, 32)};
    }
  }
  if (directory.size > file_size || directory.offset > file_size - directory.size) {
    reject("the directory is outside the file");
  }
  if (directory.size > max_directory) reject("the directory is too large");
  if (directory.count > directory.size / entry_size) reject("the number of records does not fit into the directory");
  return directory;
}

// Sets `wanted`, the numbers of an entry whose 32 bits are all ones, from its extra field, in their order.
void read_extra(std::span<const std::byte> extra, std::vector<std::uint64_t*> wanted) {
  while (extra.size() >= 4) {
    const auto id = number_at<std::uint16_t>(extra, 0);
    const auto size = number_at<std::uint16_t>(extra, 2);
    extra = extra.subspan(4);
    if (size > extra.size()) break;
    if (id == 1) {
      auto field = extra.first(size);
      for (std::uint64_t* number : wanted) {
        if (field.size() < 8) reject("the size of a record is missing");
        *number = number_at<std::uint64_t>(field, 0);
        field = field.subspan(8);
      }
      return;
    }
    extra = extra.subspan(size);
  }
  if (!wanted.empty()) reject("the size of a record is missing");
}

struct Entry {
  ZipRecord record;
  std::uint64_t local = 0;  // position of the record's header
};

// Reads the entry at the beginning of `rest` and removes it from `rest`.
Entry read_entry(std::span<const std::byte>& rest) {
  if (rest.size() < entry_size || !has_signature(rest, 0x02014b50)) reject("the directory is damaged");
  const std::size_t name_size = number_at<std::uint16_t>(rest, 28), extra_size = number_at<std::uint16_t>(rest, 30);
  const std::size_t whole = entry_size + name_size + extra_size + number_at<std::uint16_t>(rest, 32);
  if (whole > rest.size()) reject("the directory is damaged");
  if (name_size == 0 || name_size > max_name) reject("a record's name is empty or too long");
  Entry entry;
  entry.record.name.assign(reinterpret_cast<const char*>(rest.data()) + entry_size, name_size);
  const std::string& name = entry.record.name;
  if (name.find('\0') != std::string::npos) reject("a record's name contains a zero byte");
  if ((number_at<std::uint16_t>(rest, 8) & 1) != 0) reject("record '" + name + "' is encrypted");
  if (number_at<std::uint16_t>(rest, 10) != 0) {
    // torch.jit.save compresses code, which is before this record.
    const std::string_view directory(reinterpret_cast<const char*>(rest.data()), rest.size());
    if (directory.find("/constants.pkl") != std::string_view::npos) reject_torch_script();
    reject("record '" + name + "' is compressed; torch.export.save does not compress");
  }
  entry.record.crc = number_at<std::uint32_t>(rest, 16);
  std::uint64_t stored = number_at<std::uint32_t>(rest, 20);
  entry.record.size = number_at<std::uint32_t>(rest, 24);
  entry.local = number_at<std::uint32_t>(rest, 42);
  std::vector<std::uint64_t*> wanted;
  for (std::uint64_t* number : {&entry.record.size, &stored, &entry.local}) {
    if (*number == in_extra32) wanted.push_back(number);
  }
  read_extra(rest.subspan(entry_size + name_size, extra_size), wanted);
  if (stored != entry.record.size) reject("record '" + name + "' has two different sizes");
  rest = rest.subspan(whole);
  return entry;
}

// Finds the first byte of a record, behind the record's header. The directory does not have the header's length.
void find_data(Entry& entry, std::uint64_t data_end, const ReadAt& read) {
  const std::string record = "record '" + entry.record.name + "'";
  if (entry.local > data_end || data_end - entry.local < local_size) reject(record + " is outside the file");
  std::array<std::byte, local_size> header{};
  read(entry.local, header);
  if (!has_signature(header, 0x04034b50)) reject("the header of " + record + " is damaged");
  const std::uint64_t names =
      std::uint64_t{number_at<std::uint16_t>(header, 26)} + number_at<std::uint16_t>(header, 28);
  const std::uint64_t left = data_end - entry.local - local_size;
  if (names > left || entry.record.size > left - names) {
    reject(record + " of " + std::to_string(entry.record.size) + " bytes does not fit into the file");
  }
  entry.record.offset = entry.local + local_size + names;
}

constexpr auto crc_table = [] {
  std::array<std::array<std::uint32_t, 256>, 8> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? 0xEDB88320U ^ (crc >> 1U) : crc >> 1U;
    table[0][i] = crc;
  }
  for (std::size_t k = 1; k < table.size(); ++k) {
    for (std::size_t i = 0; i < 256; ++i) table[k][i] = table[0][table[k - 1][i] & 0xFFU] ^ (table[k - 1][i] >> 8U);
  }
  return table;
}();

}  // namespace

std::vector<ZipRecord> read_zip_directory(std::uint64_t file_size, const ReadAt& read) {
  const Directory directory = find_directory(file_size, read);
  std::vector<std::byte> bytes(directory.size);
  read(directory.offset, bytes);
  std::vector<Entry> entries;
  std::set<std::string> names;
  std::span<const std::byte> rest = bytes;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    entries.push_back(read_entry(rest));
    if (!names.insert(entries.back().record.name).second)
      reject("record '" + entries.back().record.name + "' occurs twice");
    find_data(entries.back(), directory.offset, read);
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.local < b.local; });
  std::vector<ZipRecord> records;
  std::uint64_t end = 0;
  for (Entry& entry : entries) {
    // Overlapping records would let a small file use much more memory than it has bytes.
    if (entry.local < end) reject("record '" + entry.record.name + "' overlaps the record before it");
    end = entry.record.offset + entry.record.size;
    records.push_back(std::move(entry.record));
  }
  return records;
}

void reject_torch_script() {
  throw CheckpointError("the file is a TorchScript archive (torch.jit.save): load it with tutti::JitModule");
}

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  // Eight bytes a step: https://create.stephan-brumme.com/crc32/#slicing-by-8-overview
  while (bytes.size() >= 8) {
    const std::uint32_t low = number_at<std::uint32_t>(bytes, 0) ^ crc, high = number_at<std::uint32_t>(bytes, 4);
    crc = crc_table[7][low & 0xFFU] ^ crc_table[6][(low >> 8U) & 0xFFU] ^ crc_table[5][(low >> 16U) & 0xFFU] ^
          crc_table[4][low >> 24U] ^ crc_table[3][high & 0xFFU] ^ crc_table[2][(high >> 8U) & 0xFFU] ^
          crc_table[1][(high >> 16U) & 0xFFU] ^ crc_table[0][high >> 24U];
    bytes = bytes.subspan(8);
  }
  for (const std::byte byte : bytes) crc = crc_table[0][(crc ^ static_cast<std::uint32_t>(byte)) & 0xFFU] ^ (crc >> 8U);
  return ~crc;
}

}  // namespace tutti::exported
