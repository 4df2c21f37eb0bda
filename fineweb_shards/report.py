def write_report(folder, measure_all=False):
    return folder
