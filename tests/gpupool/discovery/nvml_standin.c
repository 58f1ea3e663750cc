/* A stand-in for libnvidia-ml.so.1: about the functions that the probe asks for, and no GPU.
 *
 * What it plays is read from the file named by NVML_STANDIN at every call, so that a test can change it
 * while the probe runs: ok, none, mig, mig-empty, lost, hang, driver, permission, unified.
 * Built with the real nvml.h where the nvidia-nvml-dev wheel is installed, so that types cannot drift.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HAVE_NVML_H
#include <nvml.h>
#else
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef int nvmlTemperatureSensors_t;
enum { NVML_SUCCESS = 0, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NO_PERMISSION = 4, NVML_ERROR_NOT_FOUND = 6,
       NVML_ERROR_DRIVER_NOT_LOADED = 9, NVML_ERROR_GPU_IS_LOST = 15, NVML_ERROR_INVALID_ARGUMENT = 2 };
#endif

#define GIB (1024ULL * 1024 * 1024)

static char scenario[64];

static int plays(const char *name) { return strcmp(scenario, name) == 0; }

static void look(void) {
    FILE *file = fopen(getenv("NVML_STANDIN"), "r");
    scenario[0] = '\0';
    if (file != NULL) {
        if (fgets(scenario, sizeof scenario, file) == NULL) scenario[0] = '\0';
        scenario[strcspn(scenario, "\n")] = '\0';
        fclose(file);
    }
}

/* Handles: 1 and 2 are GPUs, 11 and 12 the MIG instances of GPU 1. */
static long number(nvmlDevice_t device) { return (long)device; }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    look();
    if (plays("driver")) return NVML_ERROR_DRIVER_NOT_LOADED;
    if (plays("permission")) return NVML_ERROR_NO_PERMISSION;
    puts("a library that prints to standard output");
    fflush(stdout);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result) { (void)result; return "stand-in"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    snprintf(version, length, "570.00.01");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    look();
    while (plays("hang")) sleep(1);
    *count = plays("none") ? 0 : plays("mig") || plays("mig-empty") || plays("unified") ? 1 : 2;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (plays("lost") && index == 1) return NVML_ERROR_GPU_IS_LOST;
    *device = (nvmlDevice_t)(long)(index + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    if (number(device) > 10)
        snprintf(uuid, length, "MIG-00000000-0000-0000-0000-0000000000%02ld", number(device));
    else
        snprintf(uuid, length, "GPU-00000000-0000-0000-0000-0000000000%02ld", number(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    snprintf(name, length, number(device) > 10 ? "NVIDIA A100-PCIE-40GB MIG 3g.20gb" : "NVIDIA A100-PCIE-40GB");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02lX:00.0", 0x16 + number(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    if (plays("unified")) return NVML_ERROR_NOT_SUPPORTED;
    memory->total = (number(device) > 10 ? 20 : 40) * GIB;
    memory->used = number(device) * GIB / 2;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    if (number(device) > 10 || plays("unified")) return NVML_ERROR_NOT_SUPPORTED;
    rates->gpu = 37;
    rates->memory = 12;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
    (void)sensor;
    if (plays("unified")) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = (unsigned int)(40 + number(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    (void)device;
    *major = 8;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    (void)device;
    if (!plays("mig") && !plays("mig-empty")) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    (void)device;
    *count = 7;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    (void)device;
    if (plays("mig-empty") || index > 1) return NVML_ERROR_NOT_FOUND;
    *mig = (nvmlDevice_t)(long)(11 + index);
    return NVML_SUCCESS;
}
