// Torch's tensors without torch: part of the binding. A tensor class that publishes DLPack's table of C functions
// (torch >= 2.10) is read and made through that table; nothing of torch is linked. It costs a fraction of asking a tensor
// for one property after the other from Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "dlpack.h"

namespace shmrb {

namespace nb = nanobind;

// What one field of `count` records looks like, without the dimension that counts them.
struct Layout {
  dlpack::DataType dtype;
  std::vector<int64_t> shape;

  int64_t elements() const {
    int64_t product = 1;
    for (int64_t size : shape) product *= size;
    return product;
  }
};

// Memory of one tensor with what describes it in front; torch calls `free_made` when the last tensor on it is gone.
struct Made {
  dlpack::ManagedTensor managed;
  static constexpr size_t kAlignment = 64;

  static size_t header_bytes(size_t dimensions) {
    size_t bytes = sizeof(Made) + 2 * dimensions * sizeof(int64_t);
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static void free_made(dlpack::ManagedTensor* tensor) { std::free(tensor); }
};

// The fields of one schema as one tensor class has them.
class Tensors {
 public:
  // `table`: the class's `__dlpack_c_exchange_api__`. `layouts`: (DLPack's type code, bits, shape) a field.
  Tensors(nb::capsule table, nb::type_object tensor_class,
          const std::vector<std::tuple<int, int, std::vector<int64_t>>>& layouts)
      : table_(static_cast<const dlpack::ExchangeTable*>(PyCapsule_GetPointer(table.ptr(), dlpack::kTableName))),
        class_(tensor_class), is_neg_(tensor_class.attr("is_neg")), is_conj_(tensor_class.attr("is_conj")) {
    if (!table_) throw nb::python_error();
    if (table_->version.major != dlpack::kMajorVersion || !table_->describe)
      throw nb::value_error("Tensors: expected DLPack's table of functions in version 1, with all of them");
    for (const auto& [code, bits, shape] : layouts)
      layouts_.push_back({{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1}, shape});
  }

  // Where the values of each field lie, none if one of them is not in memory just as a column needs it: another class,
  // dtype, shape or device, with gaps, or with a sign or a conjugate still to be applied. `count` < 0: one record, without
  // the dimension that counts.
  std::optional<std::vector<uint64_t>> places(nb::list values, int64_t count) const {
    if (values.size() != layouts_.size()) return {};
    std::vector<uint64_t> found(layouts_.size());
    for (size_t i = 0; i < found.size(); ++i) {
      nb::handle value = PyList_GetItem(values.ptr(), static_cast<Py_ssize_t>(i));
      if (!value.is_valid() || !value.type().is(class_) || !lies_as(layouts_[i], value, count, &found[i])) return {};
    }
    return found;
  }

  // The same for one field; none if its values are not as its column needs them.
  std::optional<uint64_t> place(size_t field, nb::handle value, int64_t count) const {
    uint64_t found;
    if (field >= layouts_.size() || !value.type().is(class_) || !lies_as(layouts_[field], value, count, &found)) return {};
    return found;
  }

  // New tensors of `count` records, with arbitrary contents, and where they lie.
  std::pair<nb::list, std::vector<uint64_t>> make(int64_t count) const {
    nb::list made;
    std::vector<uint64_t> found;
    found.reserve(layouts_.size());
    for (const Layout& layout : layouts_) {
      uint64_t place;
      made.append(make_one(layout, count, &place));
      found.push_back(place);
    }
    return {made, found};
  }

 private:
  bool lies_as(const Layout& layout, nb::handle value, int64_t count, uint64_t* place) const {
    dlpack::Tensor seen;
    if (table_->describe(value.ptr(), &seen) != 0) {
      PyErr_Clear();  // the long way says what is wrong
      return false;
    }
    if (seen.device.kind != dlpack::kCpu || !(seen.dtype == layout.dtype)) return false;
    size_t lead = count < 0 ? 0 : 1;
    if (static_cast<size_t>(seen.dimensions) != layout.shape.size() + lead) return false;
    if (lead && seen.shape[0] != count) return false;
    int64_t step = 1;
    for (size_t i = layout.shape.size(); i-- > 0;) {
      if (seen.shape[i + lead] != layout.shape[i]) return false;
      if (layout.shape[i] != 1 && seen.strides[i + lead] != step) return false;
      step *= layout.shape[i];
    }
    if (lead && count > 1 && seen.strides[0] != step) return false;
    *place = reinterpret_cast<uintptr_t>(seen.data) + seen.byte_offset;
    return layout.dtype.code == dlpack::kBool || !is_put_off(layout, value);
  }

  // Torch puts negations and conjugates off: what lies in memory is not the value yet.
  bool is_put_off(const Layout& layout, nb::handle value) const {
    if (is_neg_(value).ptr() == Py_True) return true;
    return layout.dtype.code == dlpack::kComplex && is_conj_(value).ptr() == Py_True;
  }

  nb::object make_one(const Layout& layout, int64_t count, uint64_t* place) const {
    size_t dimensions = layout.shape.size() + 1;
    size_t header = Made::header_bytes(dimensions);
    size_t bytes = static_cast<size_t>(count * layout.elements()) * (layout.dtype.bits / 8);
    void* memory = std::malloc(header + bytes);
    if (!memory) throw std::bad_alloc();
    auto* made = new (memory) Made{};
    auto* shape = reinterpret_cast<int64_t*>(made + 1);
    int64_t* strides = shape + dimensions;
    shape[0] = count;
    for (size_t i = 1; i < dimensions; ++i) shape[i] = layout.shape[i - 1];
    strides[dimensions - 1] = 1;
    for (size_t i = dimensions - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
    void* data = static_cast<uint8_t*>(memory) + header;
    made->managed = {{dlpack::kMajorVersion, 0}, nullptr, &Made::free_made, 0,
                     {data, {dlpack::kCpu, 0}, static_cast<int32_t>(dimensions), layout.dtype, shape, strides, 0}};
    void* object = nullptr;
    if (table_->to_python(&made->managed, &object) != 0) throw nb::python_error();  // which has taken the memory
    *place = reinterpret_cast<uintptr_t>(data);
    return nb::steal(static_cast<PyObject*>(object));
  }

  const dlpack::ExchangeTable* table_;  // lives as long as the process
  nb::type_object class_;
  nb::object is_neg_, is_conj_;
  std::vector<Layout> layouts_;
};

}  // namespace shmrb
